"""The search of a queue's page finds what its reader may see, and tells how far it has looked."""

import re
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from fdbqueue import Database, Failure, TaskQueue
from fdbqueue.core import limits
from fdbqueue.tasks.selected import Where
from tests.dashboard.support import Browser, browsing, path_of, shown

PAGE = path_of("mail")
SECRET = "k-4111"


@pytest.fixture
def ids(db: Database) -> dict[str, str]:
    queue = TaskQueue.create(db, "mail", "utubettl")
    data = {"card": SECRET, "name": "ann", "items": [{"card": SECRET, "sku": 7}]}
    ids = {name: queue.put(db, data, headers={"token": SECRET, "t": name}, key=name).id for name in "ab"}
    ids["c"] = queue.put(db, {"name": "bob"}, key=("<c>", 1), unique=5).id
    queue.bury(db, ids["b"], failure=Failure("Odd<1>", "x"))
    return ids


def listed(page: str, ids: dict[str, str]) -> list[str]:
    rows = page.partition('id="tasks"')[2].partition('id="keys"')[0]
    return [name for name, id_ in ids.items() if f'id="t-{id_}"' in rows]


def test_each_field_finds_its_tasks(db: Database, ids: dict[str, str]) -> None:
    with browsing(db) as browser:
        for query, wanted in (
            ("key=a", ["a"]),
            ('key=["<c>",1]', ["c"]),
            ("unique=5", ["c"]),
            ("unique=%225%22", []),
            ('unique=["x",1]', []),
            ("class=Odd<1>", ["b"]),
            ("headers=t=b", ["b"]),
            ("data=name=ann", ["a", "b"]),
            ("data=name=ann&state=buried", ["b"]),
            ("data=items.0.sku=7&key=a&group=&state=", ["a"]),
        ):
            page = browser.get(f"{PAGE}?{query}")
            assert listed(page, ids) == wanted, query
            assert '<details class="body" open>' in page
            assert ("No task among these matches." in page) is (not wanted)
        page = browser.get(f"{PAGE}?class=Odd<1>")
        assert 'value="Odd&lt;1&gt;"' in page
        assert "Buried" in shown(page.partition('id="tasks"')[2])
        assert listed(browser.get(f"{PAGE}?state="), ids) == ["a", "c"]
        assert "Looked at" not in browser.said(f"{PAGE}?state=buried")


def test_a_pasted_id_leads_to_its_task(db: Database, ids: dict[str, str]) -> None:
    with browsing(db) as browser:
        answer = browser.client.get(f"{PAGE}?id=+{ids['b']}+", follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, path_of("mail", "tasks", ids["b"]))
        browser.get(f"{PAGE}?id={'0' * 32}", 404)
        browser.get(f"{PAGE}?id=//evil.example", 400)


def test_a_search_tells_how_far_it_looked_and_goes_on(
    db: Database, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SEARCHED_TASKS", 2)
    with browsing(db) as browser:
        page = browser.get(f"{PAGE}?data=name=bob")
        assert (listed(page, ids), "Looked at 2 of 3 tasks" in shown(page)) == ([], True)
        assert "data-reload" not in page
        more = re.search(r'href="(\?[^"]*)">Go on', page)
        assert more is not None
        page = browser.get(PAGE + more[1].replace("&amp;", "&"))
        assert (listed(page, ids), "Looked at 1 of 3 tasks" in shown(page), "Go on" in page) == (
            ["c"],
            True,
            False,
        )


@pytest.mark.parametrize(
    "query",
    [
        "data=x",
        "headers=x",
        "data=name={",
        "group=x",
        "class=Odd&state=ready",
        "key=a&state=ended",
        "key=a&after=00",
    ],
)
@pytest.mark.usefixtures("ids")
def test_bad_input_of_a_search_is_a_sentence(db: Database, query: str) -> None:
    with browsing(db) as browser:
        assert "400" in browser.said(f"{PAGE}?{query}", 400)


# What is hidden cannot be found.


def sees_no_data(_: Request, action: str, __: str | None) -> bool:
    return action == "look"


def hides(path: str, _: object) -> bool:
    return path.endswith(("card", "token"))


PATHS = ["data.card", "data.items.card", "headers.token"]
GUESSES = [
    f"data=card={SECRET}",
    f'data={{"card":"{SECRET}"}}',
    f'data==["{SECRET}"]',
    "data=card.x=1",
    f"data=items.0.card={SECRET}",
    f"data=0.card={SECRET}",
    f'data=items=[{{"card":"{SECRET}"}}]',
    f"headers=token={SECRET}",
]
KEYS = ["key", "unique"]


@pytest.mark.parametrize(
    "given",
    [
        {"redact": [*PATHS, *KEYS]},
        {"redact": hides},
        {"authorize": sees_no_data},
        {"redact": ["data", "headers"]},
    ],
)
def test_no_search_guesses_a_hidden_value(db: Database, ids: dict[str, str], given: dict[str, Any]) -> None:
    with browsing(db, **given) as browser:
        for guess in GUESSES:
            for tried in (guess, guess.replace(SECRET, "k-0")):
                status = 400 if tried.startswith("data={") else 403
                answer = browser.get(f"{PAGE}?{tried}", status)
                assert not any(id_ in answer for id_ in ids.values())
        if "key" in fields(browser):
            page = browser.get(f"{PAGE}?key=a")
            assert (listed(page, ids), SECRET in page) == (["a"], False)
        else:
            assert [browser.get(f"{PAGE}?{name}=a", 403) for name in KEYS]


def fields(browser: Browser) -> list[str]:
    return re.findall(r'<input id="by-\w+" name="(\w+)"', browser.get(PAGE))


@pytest.mark.usefixtures("ids")
def test_the_form_has_the_fields_that_may_be_searched(db: Database) -> None:
    every = ["id", "key", "unique", "group", "class", "headers", "data"]
    with browsing(db, redact=PATHS) as browser:
        assert fields(browser) == every
        assert "ann" in browser.get(f"{PAGE}?data=name=ann")
    for given in ({"redact": hides}, {"redact": ["data", "headers"]}):
        with browsing(db, **given) as browser:
            assert fields(browser) == every[:5]
    with browsing(db, redact=KEYS) as browser:
        assert fields(browser) == [name for name in every if name not in KEYS]
    with browsing(db, authorize=sees_no_data) as browser:
        assert fields(browser) == ["id", "class"]


def test_a_search_reads_no_attribute_like_dict() -> None:
    """It would tell a hidden attribute."""
    data = SimpleNamespace(card=SECRET)
    assert Where(data=[(["card"], SECRET)]).matches_data(data)
    assert not Where(data=[(["__dict__", "card"], SECRET)]).matches_data(data)
    assert Where(data=[(["__dict__"], 1)]).matches_data({"__dict__": 1})
