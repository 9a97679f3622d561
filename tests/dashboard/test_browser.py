"""The dashboard in Chromium: live, by keyboard alone, on a telephone, in both themes, without a script."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

import fdbqueue
from fdbqueue import Database, Failure, TaskQueue
from fdbqueue.core.runtime import RealRuntime, Thread
from fdbqueue.operate.dashboard.views import segment
from tests.dashboard.chromium import Browser, Page, Tab, chromium, served, tab
from tests.support import IdleThread

SCRIPT = "<script>document.title = 'run'</script>"
LONG = "a/very-long-name-of-a-queue" * 5
DESK = {"width": 1280, "height": 720}
PHONE = {"width": 360, "height": 640}
THEMES = ("light", "dark")

# The smallest contrast of a text with its ground, as WCAG computes it, and that text.
CONTRAST = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const painted = (colours) => {
    canvas.globalCompositeOperation = "source-over";
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const linear = (part) => (part /= 255) <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, by, i) => sum + by * linear(rgb[i]), 0);
  let worst = [21, ""];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.nodeValue.trim() || !element.checkVisibility()) continue;
    const grounds = [];
    for (let at = element; at; at = at.parentElement) grounds.unshift(getComputedStyle(at).backgroundColor);
    const lights = [painted(grounds), painted([...grounds, getComputedStyle(element).color])].map(light);
    const contrast = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    if (contrast < worst[0]) worst = [contrast, texts.currentNode.nodeValue.trim()];
  }
  return worst;
}"""


class Keeperless(RealRuntime):
    """The leases of these tests need no heartbeat, and no thread that would outlive a test."""

    def spawn(self, target: Callable[[], None], name: str) -> Thread:
        return IdleThread() if name == "fdbqueue-keeper" else super().spawn(target, name)


class Site(NamedTuple):
    db: Database
    url: str
    browser: Browser
    buried: str
    """The id of a buried task of the queue LONG."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with fdbqueue.open("memory:", runtime=Keeperless()) as db, served(db) as url, chromium() as browser:
        hurting = TaskQueue.create(db, LONG, "utube", retain_s=3600)
        hurting.put_many(db, [{"html": SCRIPT * 9}] * 3, key=SCRIPT)
        buried = hurting.take(db)
        assert buried is not None
        hurting.bury(db, buried, failure=Failure("E" * 99, SCRIPT, f"{SCRIPT}\n{'x' * 999}", "host:1"))
        TaskQueue.create(db, SCRIPT).put(db, SCRIPT)
        yield Site(db, url, browser, buried.id)


@pytest.fixture
def pages(site: Site) -> list[str]:
    """A page of each kind, all with texts that hurt."""
    queue = f"/queues/{segment(LONG)}"
    return ["/", queue, f"{queue}?state=buried", f"{queue}/dead", f"{queue}/tasks/{site.buried}"]


@pytest.fixture(scope="module")
def only_tab(site: Site) -> Iterator[Tab]:
    with tab(site.browser, site.url) as opened:
        yield opened


@pytest.fixture
def here(only_tab: Tab) -> Iterator[Tab]:
    """The tab of all tests: a new one costs half a second."""
    yield only_tab
    only_tab.page.goto("about:blank")
    said, only_tab.complaints = only_tab.complaints, []
    assert said == []


def queue_of(site: Site, name: str, *data: Any) -> TaskQueue:
    queue = TaskQueue.create(site.db, name)
    queue.put_many(site.db, data)
    return queue


def row(page: Page, queue: str) -> Any:
    return page.locator(f"[id='q-{segment(queue)}']")


def test_texts_of_tasks_stay_texts_on_each_page(here: Tab, pages: list[str]) -> None:
    for path in pages:
        page = here.open(path)
        assert page.locator("h1").is_visible()
        assert page.title().endswith(" · fdbqueue")
        assert page.locator("main script").count() == 0
    assert SCRIPT in here.open(f"/queues/{segment(SCRIPT)}").locator("main").inner_text()


def test_a_put_appears_without_a_reload(here: Tab, site: Site) -> None:
    queue = queue_of(site, "live", 1)
    page = here.open()
    shown = row(page, "live").locator("[data-label=Ready]")
    shown.get_by_text("1", exact=True).wait_for()
    row(page, "live").get_by_role("link").focus()
    page.evaluate("window.before = true; scrollTo(0, 10)")
    queue.put(site.db, 2)
    shown.get_by_text("2", exact=True).wait_for()
    assert here.focused() == "live"
    assert page.evaluate("[window.before, scrollY]") == [True, 10]


def test_rows_come_and_go_around_the_row_with_the_focus(here: Tab, site: Site) -> None:
    page = here.open()
    row(page, LONG).get_by_role("link").focus()
    queue = queue_of(site, "a-first")
    row(page, "a-first").wait_for()
    assert here.focused() == LONG
    queue.drop(site.db)
    row(page, "a-first").wait_for(state="detached")
    assert here.focused() == LONG


def test_the_tasks_of_an_open_queue_are_live(here: Tab, site: Site) -> None:
    queue = queue_of(site, "watched")
    page = here.open("/queues/watched")
    page.get_by_text("No ready tasks.").wait_for()
    id_ = queue.put(site.db, "news").id
    page.get_by_role("link", name=id_).wait_for()


def test_an_action_is_done_after_its_confirmation_only(here: Tab, site: Site) -> None:
    queue = queue_of(site, "paused-here")
    page = here.open("/queues/paused-here")
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog", name="Pause?")
    dialog.get_by_role("link", name="Back").click()
    dialog.wait_for(state="detached")
    assert not queue.paused(site.db)
    page.get_by_role("button", name="Pause").click()
    dialog.get_by_role("button", name="Pause").click()
    page.get_by_text("This queue is paused.").wait_for()
    assert queue.paused(site.db)


def test_an_action_is_asked_for_right_after_a_dialog_closed(here: Tab, site: Site) -> None:
    queue_of(site, "asked-twice")
    page = here.open("/queues/asked-twice")
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog", name="Pause?")
    dialog.wait_for()
    page.evaluate("document.querySelector('dialog').close(); document.forms[0].requestSubmit()")
    dialog.get_by_role("link", name="Back").click()
    dialog.wait_for(state="detached")


def test_a_buried_task_is_edited_and_kicked(here: Tab, site: Site) -> None:
    queue = queue_of(site, "mended", {"to": "nowhere"})
    task = queue.take(site.db)
    assert task is not None
    queue.bury(site.db, task, failure=Failure("KeyError", "to"))
    page = here.open(f"/queues/mended/tasks/{task.id}")
    page.get_by_text("Edit the data").click()
    page.get_by_label("New data").fill('{"to": "ada"}')
    before = page.locator("#life").inner_text()
    page.wait_for_function("before => document.getElementById('life').innerText !== before", arg=before)
    assert page.get_by_label("New data").input_value() == '{"to": "ada"}', "a refresh took it away"
    page.get_by_role("button", name="Save").click()
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    page.get_by_role("status").wait_for()
    page.get_by_role("button", name="Kick").click()
    page.get_by_role("dialog").get_by_role("button", name="Kick").click()
    page.get_by_text("Ready", exact=True).first.wait_for()
    mended = queue.take(site.db)
    assert mended is not None
    assert (mended.id, mended.data) == (task.id, {"to": "ada"})


def test_ticked_tasks_keep_their_ticks_and_are_buried(here: Tab, site: Site) -> None:
    queue = queue_of(site, "ticked", *range(3))
    page = here.open("/queues/ticked")
    ids = [task.id for task in queue.tasks(site.db, "r", 9)]
    page.get_by_label(f"Tick {ids[0]}").check()
    page.get_by_label("All here").check()
    page.get_by_label(f"Tick {ids[1]}").uncheck()
    queue.delete(site.db, ids[2])
    page.get_by_label(f"Tick {ids[2]}").wait_for(state="detached")
    assert page.get_by_label(f"Tick {ids[0]}").is_checked(), "a refresh took the tick away"
    page.get_by_role("button", name="Bury").click()
    dialog = page.get_by_role("dialog", name="Bury?")
    dialog.get_by_text("Of 1 task, 1 would change (1 ready).").wait_for()
    assert queue.peek(site.db, ids[0]).state == "r"
    dialog.get_by_role("button", name="Bury").click()
    page.get_by_text("1 task was buried.").wait_for()
    assert [queue.peek(site.db, id_).state for id_ in ids[:2]] == ["!", "r"]


def test_a_keyboard_alone_reaches_an_action(here: Tab, site: Site) -> None:
    queue = queue_of(site, "by-keys")
    page = here.open()
    row(page, "by-keys").wait_for()  # the page may show a look from before
    page.keyboard.press("Tab")
    assert here.focused() == "Skip to the content"
    page.keyboard.press("Enter")
    here.press_until("by-keys")
    page.keyboard.press("Enter")
    page.wait_for_url("**/queues/by-keys")
    here.press_until("Pause")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    page.keyboard.press("Escape")
    dialog.wait_for(state="detached")
    assert here.focused() == "Pause"
    page.keyboard.press("Enter")
    dialog.wait_for()
    assert here.focused() == "Pause"
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Resume").wait_for()
    assert queue.paused(site.db)


def test_a_page_says_so_once_the_dashboard_is_gone(site: Site) -> None:
    context = site.browser.new_context()
    with closing(context):
        with served(site.db) as url:
            page = Tab(context, url).open()
            page.get_by_text("Live · ").wait_for()
        page.get_by_role("alert").get_by_text("does not answer").wait_for()
        assert row(page, LONG).is_visible()


def test_pages_work_without_a_script(site: Site) -> None:
    queue = queue_of(site, "scriptless", 1, 2)
    with tab(site.browser, site.url, java_script_enabled=False) as here:
        here.open().get_by_role("link", name=SCRIPT).first.wait_for()
        page = here.open("/queues/scriptless")
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("heading", name="Pause?").wait_for()
        assert not queue.paused(site.db)
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Resume").wait_for()
        assert not page.get_by_label("All here").is_visible()
        for tick in page.get_by_label("Tick ").all():
            tick.check()
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("Of 2 tasks, 2 would change (2 ready).").wait_for()
        page.get_by_role("button", name="Delete").click()
        page.get_by_text("2 tasks were deleted.").wait_for()
    assert queue.paused(site.db)


def test_a_telephone_needs_no_sideways_scroll(here: Tab, pages: list[str]) -> None:
    here.page.set_viewport_size(PHONE)
    for path in pages:
        assert here.open(path).evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
    here.page.set_viewport_size(DESK)


def test_texts_have_a_good_contrast_in_both_themes(here: Tab, pages: list[str]) -> None:
    for path in pages:
        page = here.open(path)
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            contrast, text = page.evaluate(CONTRAST)
            assert contrast >= 4.5, (path, theme, text)
    here.page.emulate_media(color_scheme="light")


def test_the_theme_is_remembered(here: Tab) -> None:
    def ground(page: Page) -> Any:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    page = here.open()
    light, switch = ground(page), page.get_by_role("button", name="Theme:")
    switch.click()
    assert (switch.inner_text().split()[-1], ground(page)) == ("Light", light)
    switch.click()
    assert ground(page) != light
    assert ground(here.open()) != light
    assert switch.inner_text().split()[-1] == "Dark"
    here.context.clear_cookies()
