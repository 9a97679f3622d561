// The live parts of a page, confirmations as dialogs, and the theme. Every page works without this file.
"use strict";

const main = document.getElementById("main");
const pulse = document.getElementById("pulse");
const silence = document.getElementById("silence");
const theme = document.getElementById("theme");

// Theme: a cookie that the server reads, so no page appears in the other theme first.

const THEMES = ["auto", "light", "dark"];

theme.hidden = false;
theme.addEventListener("click", () => {
  const page = document.documentElement.dataset;
  const chosen = THEMES[(THEMES.indexOf(page.theme ?? "auto") + 1) % THEMES.length];
  if (chosen === "auto") delete page.theme;
  else page.theme = chosen;
  document.cookie = `fdbqueue_theme=${chosen}; path=/; max-age=31536000; samesite=lax`;
  theme.querySelector("[data-name]").textContent = chosen[0].toUpperCase() + chosen.slice(1);
});

// Morphing: nodes change only where they differ, so focus, selection and scroll stay. Elements with an id are
// matched by it. Fields stay as they are, because the reader may be typing.

function morph(shown, wanted) {
  if (shown.nodeType !== Node.ELEMENT_NODE) {
    if (shown.nodeValue !== wanted.nodeValue) shown.nodeValue = wanted.nodeValue;
    return;
  }
  if (shown.matches("input, textarea, select")) return;
  for (const { name } of [...shown.attributes])
    if (name !== "open" && !wanted.hasAttribute(name)) shown.removeAttribute(name);
  for (const { name, value } of wanted.attributes)
    if (name !== "open" && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
  let at = shown.firstChild;
  for (const child of [...wanted.childNodes]) {
    const same = child.id ? shown.querySelector(`:scope > #${CSS.escape(child.id)}`) : at?.id ? null : at;
    if (same?.nodeName !== child.nodeName) {
      shown.insertBefore(child, at);
      continue;
    }
    while (at !== same) at = removed(at);
    morph(same, child);
    at = same.nextSibling;
  }
  while (at) at = removed(at);
}

function removed(node) {
  const next = node.nextSibling;
  node.remove();
  return next;
}

function parsed(html) {
  return new DOMParser().parseFromString(html, "text/html");
}

// Live refresh: parts of the page as server-sent events; the whole page again after a part has changed, or from
// time to time. A page that is not visible asks for nothing.

const { events, reload } = document.body.dataset;
const RELOAD_MS = Number(reload) * 1000;
let source, timer, reloaded = Date.now();

function tell(state, text) {
  pulse.hidden = false;
  pulse.dataset.state = state;
  pulse.textContent = state === "live" ? `Live · ${new Date().toISOString().slice(11, 19)}` : "Not live";
  if (silence.textContent !== text) silence.textContent = text;
  silence.hidden = !text;
}

function showPart({ data }) {
  const { part, html } = JSON.parse(data);
  const shown = document.getElementById(part);
  const wanted = shown.cloneNode(false);
  wanted.append(...parsed(html).body.childNodes);
  const isNew = !shown.isEqualNode(wanted);
  morph(shown, wanted);
  tell("live", "");
  if (isNew && reload) reloadSoon();
}

function listen() {
  source = new EventSource(events);
  source.addEventListener("part", showPart);
  source.addEventListener("silence", ({ data }) => tell("lost", JSON.parse(data).text));
  source.addEventListener("error", () => tell("lost", "The dashboard does not answer. This page shows the past."));
}

function reloadSoon() {
  timer ??= setTimeout(reloadNow, Math.max(0, reloaded + RELOAD_MS - Date.now()));
}

async function reloadNow() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (answer.redirected) return location.reload();
    morph(main, parsed(await answer.text()).getElementById("main"));
    tell("live", "");
  } catch {
    tell("lost", "The dashboard does not answer. This page shows the past.");
  }
  reloaded = Date.now();
  timer = undefined;
  if (!events && !document.hidden) reloadSoon();
}

function follow() {
  source?.close();
  clearTimeout(timer);
  timer = undefined;
  if (document.hidden) return;
  if (events) listen();
  else if (reload) reloadSoon();
}

document.addEventListener("visibilitychange", follow);
addEventListener("pagehide", () => source?.close());
follow();

// Confirmations: the page that asks, in a dialog. Any other answer of the server is shown as the page it is.

document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!form.matches("[data-asks]")) return;
  event.preventDefault();
  if (document.querySelector("dialog[open]")) return; // a closed one leaves the page a moment later
  const action = event.submitter?.getAttribute("formaction") ?? form.action;
  const asking = await asked(form, action);
  if (asking) return showDialog(asking);
  form.action = action;
  form.submit();
});

async function asked(form, action) {
  try {
    const answer = await fetch(action, { method: "POST", body: new URLSearchParams(new FormData(form)) });
    return parsed(await answer.text()).getElementById("confirm");
  } catch {
    return null;
  }
}

document.addEventListener("change", ({ target }) => {
  if (!target.matches("[data-ticks]")) return;
  for (const tick of target.form.querySelectorAll("[name=task]")) tick.checked = target.checked;
});

function showDialog(asking) {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "asks");
  dialog.append(asking);
  asking.querySelector("[data-close]").addEventListener("click", (event) => {
    event.preventDefault();
    dialog.close();
  });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
