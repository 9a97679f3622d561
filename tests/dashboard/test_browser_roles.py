"""Three people and one dashboard in Chromium: roles, a search, the trash, and charts."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Failure, TaskQueue
from fdbqueue.core.redaction import HIDDEN
from fdbqueue.operate.exports import trash
from tests.dashboard.chromium import Page, Tab, chromium, served, tab
from tests.dashboard.test_browser import Keeperless, Site
from tests.dashboard.test_roles import authorize

CARD = "k-sesame"


@pytest.fixture(scope="module")
def house() -> Iterator[Site]:
    roles: dict[str, Any] = {"authorize": authorize, "redact": ["data.card"]}
    with (
        fdbqueue.open("memory:", runtime=Keeperless()) as db,
        served(db, **roles) as url,
        chromium() as browser,
    ):
        mail = TaskQueue.create(db, "mail", "utubettl", chronicle=True)
        ids = [mail.put(db, {"to": to, "card": CARD}, key=to).id for to in ("ann", "bob", "eve")]
        mail.bury(db, ids[1], failure=Failure("Declined", f"the card {CARD}"))
        TaskQueue.create(db, "payroll").put(db, 1)
        yield Site(db, url, browser, ids[1])


@pytest.fixture
def people(house: Site) -> Iterator[dict[str, Tab]]:
    """A browser of each role: the header of a proxy names it."""
    with ExitStack() as tabs:
        yield {
            role: tabs.enter_context(tab(house.browser, house.url, extra_http_headers={"x-role": role}))
            for role in ("owner", "clerk", "guest")
        }


def buttons(page: Page) -> set[str]:
    return {text.strip() for text in page.locator("main .actions").get_by_role("button").all_inner_texts()}


def test_each_role_sees_its_queues_and_buttons(house: Site, people: dict[str, Tab]) -> None:
    task = f"/queues/mail/tasks/{house.buried}"
    for role, queues, shown in (
        ("guest", ["mail"], set[str]()),
        ("clerk", ["mail"], {"Kick"}),
        ("owner", ["mail", "payroll"], {"Kick", "Delete"}),
    ):
        first = people[role].open("/")
        names = first.locator("#queues a.name")
        names.first.wait_for()
        assert names.all_inner_texts() == queues, role
        page = people[role].open(task)
        assert buttons(page) & {"Kick", "Delete"} == shown, role
        assert CARD not in page.content()
    assert HIDDEN in people["owner"].page.locator("main").inner_text()


def test_a_search_leads_to_its_tasks_and_stays_in_the_address(people: dict[str, Tab]) -> None:
    page = people["owner"].open("/queues/mail")
    page.get_by_text("Search the tasks").click()
    page.get_by_label("Data").fill("to=bob")
    page.get_by_role("button", name="Find").click()
    page.wait_for_url("**data=to%3Dbob**")
    assert page.locator("#tasks tbody tr").count() == 1
    page.reload()
    assert page.get_by_label("Data").input_value() == "to=bob"
    page.get_by_label("Data").fill(f"card={CARD}")
    page.get_by_role("button", name="Find").click()
    page.get_by_text("hidden from you").wait_for()
    people["owner"].complaints.clear()  # Chromium logs the status 403
    assert people["guest"].open("/queues/mail").get_by_label("Data").count() == 0


def test_a_purge_is_undone_from_the_trash(house: Site, people: dict[str, Tab]) -> None:
    mail = TaskQueue.open(house.db, "mail")
    trash.purge(mail, house.db, "ann")
    assert people["clerk"].open("/queues/mail").get_by_role("button", name="Restore").count() == 0
    page = people["owner"].open("/queues/mail")
    page.get_by_text("3 tasks until").wait_for()
    page.get_by_role("button", name="Restore").click()
    page.get_by_role("dialog").get_by_role("button", name="Restore").click()
    page.get_by_role("status").wait_for()
    assert mail.statistics(house.db)["tasks"]["total"] == 3


def test_charts_of_a_month_need_no_script(house: Site) -> None:
    TaskQueue.open(house.db, "mail")._calls(house.db)._keeper.tick()
    headers = {"x-role": "owner"}
    with tab(house.browser, house.url, java_script_enabled=False, extra_http_headers=headers) as here:
        page = here.open("/queues/mail")
        page.get_by_role("link", name="Chronicle").click()
        charts = page.get_by_role("img")
        charts.nth(3).wait_for()
        sizes = [chart.bounding_box() for chart in charts.all()]
        assert [size["width"] > 300 and size["height"] > 50 for size in sizes if size] == [True] * 4
