// Server-sent events replace the parts of a page that change.
"use strict";

const address = document.body.dataset.events;
if (address) {
  const silence = document.getElementById("silence");
  const events = new EventSource(address);
  events.addEventListener("part", (event) => {
    const { part, html } = JSON.parse(event.data);
    document.getElementById(part).innerHTML = html;
    silence.hidden = true;
  });
  events.addEventListener("silence", (event) => {
    silence.textContent = JSON.parse(event.data).text;
    silence.hidden = false;
  });
}
