"""Ticked tasks, or all that a search finds, change together: those that the page before has counted."""

import re
from html import unescape
from typing import Any

import pytest
from fdb.subspace_impl import Subspace
from starlette.requests import Request

from fdbqueue import Database, Failure, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.redaction import HIDDEN
from fdbqueue.operate.exports import trash
from tests.dashboard.support import Browser, browsing, path_of, shown
from tests.dashboard.test_roles import as_role, authorize, of

MAIL = path_of("mail")
VERBS = ("kick", "bury", "pri", "move", "cancel", "delete")


@pytest.fixture
def mail(db: Database) -> TaskQueue:
    TaskQueue.create(db, "post", "utubettl")
    return TaskQueue.create(db, "mail", "utubettl", key_concurrency=9)


def put(queue: TaskQueue, db: Database, *data: Any, **options: Any) -> list[str]:
    return [queue.put(db, one, **options).id for one in data]


def asked(browser: Browser, verb: str, ids: Any, status: int = 200, **fields: str) -> str:
    """The text of the page that asks."""
    return shown(browser.post(f"{MAIL}/{verb}-tasks", status, task=ids, **fields).text)


def done(browser: Browser, verb: str, ids: list[str], **fields: str) -> str:
    """The outcome, after a confirmation by the form of the page that asks."""
    page = browser.post(f"{MAIL}/{verb}-tasks", 200, task=ids, back="state=ready").text
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    answer = browser.post(f"{MAIL}/{verb}-tasks", **{**hidden, **fields})
    after = browser.get(answer.headers["location"])
    found = re.search('<p[^>]*role="status">(.*?)</p>', after)
    assert found is not None
    return shown(found[1])


def states(queue: TaskQueue, db: Database) -> dict[str, int]:
    found = queue.statistics(db)["tasks"]
    return {name: found[name] for name in ("ready", "taken", "delayed", "buried") if found[name]}


@pytest.mark.commits_by_hand  # each transaction of an action has a timeout
def test_ticked_tasks_change_on_every_engine(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "mail", "utubettl", root=space)
    TaskQueue.create(db, "post", "utubettl", root=space)
    ids = put(queue, db, *range(4), key="k")
    with browsing(db, write=True, root=space) as browser:
        assert done(browser, "bury", ids[:3]) == "3 tasks were buried."
        assert done(browser, "kick", ids[1:]) == "2 of 3 tasks were kicked; 1 stays as it is."
        assert done(browser, "pri", ids, pri="7") == "4 tasks were changed."
        assert {queue.peek(db, id_).pri for id_ in ids} == {7}
        assert done(browser, "move", ids[:1], into="post") == "1 task was moved."
        assert done(browser, "cancel", ids[1:2]) == "1 task was cancelled."
        assert done(browser, "delete", ids) == "2 of 4 tasks were deleted; 2 are no longer here."
        assert trash.restore(queue, db).tasks == 2
        assert states(queue, db) == {"ready": 2}
    db.clear_range_startswith(space.key())


def test_the_page_that_asks_tells_what_would_change(db: Database, mail: TaskQueue) -> None:
    ready, running = put(mail, db, "<b>", 2)
    [late] = put(mail, db, 3, delay=60)
    task = mail.take(db, 0)
    assert task is not None
    assert task.id == ready
    ready, running = running, ready
    with browsing(db, write=True) as browser:
        said = asked(browser, "bury", [ready, running, late, "0" * 32])
        of_all = "Of 4 tasks, 2 would change (1 ready, 1 delayed); 1 runs now; 1 is no longer here."
        assert of_all in said
        assert "<b>" in said
        said = browser.post(f"{MAIL}/kick-tasks", 200, task=[ready, late]).text
        assert "Of 2 tasks, 0 would change; 2 stay as they are." in shown(said)
        assert "<button" not in said.partition('id="confirm"')[2]
    assert states(mail, db) == {"ready": 1, "taken": 1, "delayed": 1}


def test_tasks_that_changed_after_the_preview_are_told(db: Database, mail: TaskQueue) -> None:
    ids = put(mail, db, *range(5))
    with browsing(db, write=True) as browser:
        assert "Of 5 tasks, 5 would change (5 ready)." in asked(browser, "move", ids)
        mail.take_many(db, 2)
        sent: dict[str, Any] = {"task": ",".join(ids), "sure": "yes", "into": "post", "back": "state=ready"}
        answer = browser.post(f"{MAIL}/move-tasks", **sent)
        said = browser.said(answer.headers["location"])
        assert "3 of 5 tasks were moved; 2 run now." in said
        assert answer.headers["location"].startswith(f"{MAIL}?state=ready&done=")
        put(mail, db, "new")
        said = browser.said(browser.post(f"{MAIL}/move-tasks", **sent).headers["location"])
        assert "No task was moved; 2 run now; 3 are no longer here." in said
    assert (states(mail, db), states(TaskQueue.open(db, "post"), db)) == (
        {"ready": 1, "taken": 2},
        {"ready": 3},
    )


def test_all_that_match_are_those_of_the_preview(db: Database, mail: TaskQueue) -> None:
    for id_ in put(mail, db, *range(60), headers={"t": "x"}):
        mail.bury(db, id_, failure=Failure("Odd<1>", "x"))
    [other] = put(mail, db, 61)
    with browsing(db, write=True) as browser:
        page = browser.get(f"{MAIL}?class=Odd<1>")
        assert ('value="class=Odd%3C1%3E"' in page, 'name="all"' in page) == (True, True)
        asking = browser.post(
            f"{MAIL}/delete-tasks", 200, task=other, all="yes", back="class=Odd%3C1%3E"
        ).text
        assert "Of 60 tasks, 60 would change (60 buried)." in shown(asking)
        assert (other in asking, "More may match" in asking) == (False, False)
        [ids] = re.findall(r'name="task" value="([^"]*)"', asking)
        mail.bury(db, other, failure=Failure("Odd<1>", "later"))
        answer = browser.post(f"{MAIL}/delete-tasks", sure="yes", task=ids, back="class=Odd%3C1%3E")
        said = browser.get(answer.headers["location"])
        assert "60 tasks were deleted." in said
        assert f't-{other}"' in said
    assert (states(mail, db), trash.listed(mail, db)[0].tasks) == ({"buried": 1}, 60)


def test_a_long_answer_of_a_search_is_cut(
    db: Database, mail: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(mail, db, *range(5), unique=None, headers={"t": "x"})
    monkeypatch.setattr(limits, "BATCH_ITEMS_MAX", 3)
    with browsing(db, write=True) as browser:
        said = asked(browser, "cancel", "", all="yes", back="headers=t%3Dx")
        assert "Of 3 tasks, 3 would change (3 ready). More may match" in said


def test_all_that_match_begin_where_the_search_goes_on(
    db: Database, mail: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = put(mail, db, *range(5), headers={"t": "x"})
    monkeypatch.setattr(limits, "SEARCHED_TASKS", 2)
    with browsing(db, write=True) as browser:
        more = re.search(r'href="(\?[^"]*)">Go on', browser.get(f"{MAIL}?headers=t%3Dx"))
        assert more is not None
        back = re.search(r'name="back" value="([^"]*)"', browser.get(MAIL + unescape(more[1])))
        assert back is not None
        page = browser.post(f"{MAIL}/bury-tasks", 200, all="yes", back=unescape(back[1])).text
        assert f'name="task" value="{",".join(ids[2:4])}"' in page
        sent = {"task": ids[2], "sure": "yes", "back": unescape(back[1])}
        answer = browser.client.post(f"{MAIL}/bury-tasks", data={**sent, "csrf": browser.csrf()})
        assert f't-{ids[2]}"' in answer.text
    assert states(mail, db) == {"ready": 4, "buried": 1}


BAD = ("", "x", "00", "0" * 31, "0" * 32 + ",", "<b>", ",".join(["0" * 32] * 1001), f"{'0' * 32},\x00")


@pytest.mark.parametrize("ids", BAD, ids=lambda ids: ids[:34])
def test_a_forged_list_is_refused(db: Database, mail: TaskQueue, ids: str) -> None:
    put(mail, db, 1)
    with browsing(db, write=True) as browser:
        for sure in ("", "yes"):
            assert "400" in asked(browser, "delete", ids, 400, sure=sure)
        assert "400" in asked(browser, "delete", "", 400, all="yes", back="state=ready")
        assert "400" in asked(browser, "delete", ["0" * 32] * 200, 400)
    assert states(mail, db) == {"ready": 1}
    assert of(db) == []


def test_no_form_reaches_another_queue(db: Database, mail: TaskQueue) -> None:
    post = TaskQueue.open(db, "post")
    mine, theirs = put(mail, db, 1)[0], put(post, db, 2)[0]
    with browsing(db, write=True) as browser:
        for verb, told in (("bury", "buried"), ("cancel", "cancelled"), ("delete", "deleted")):
            assert "1 is no longer here" in asked(browser, verb, [theirs])
            assert done(browser, verb, [theirs]) == f"No task was {told}; 1 is no longer here."
        for into, status in (("", 400), ("mail", 400), ("none", 404), ("plain", 404)):
            asked(browser, "move", [mine], status, into=into, sure="yes")
        for pri in ("", "x", "-1", "1e9", "9" * 16):
            asked(browser, "pri", [mine], 400, pri=pri, sure="yes")
    assert (states(mail, db), states(post, db)) == ({"ready": 1}, {"ready": 1})


def drawn(page: str) -> list[str]:
    return re.findall(r'formaction="[^"]*/(\w+)-tasks"', page)


def test_lists_have_ticks_and_the_actions_of_their_state(db: Database, mail: TaskQueue) -> None:
    ids = put(mail, db, *range(3), key="k")
    mail.bury(db, ids[2])
    put(mail, db, 4, delay=9)
    mail.take(db, 0)
    plain = TaskQueue.create(db, "plain", "fifo")
    put(plain, db, 1)
    with browsing(db, write=True) as browser:
        for query, verbs, ticks in (
            ("state=ready", VERBS[1:], 1),
            ("state=delayed", VERBS[1:], 1),
            ("state=buried", (VERBS[0], *VERBS[2:]), 1),
            ("state=taken", (), 0),
            ("key=k", VERBS, 2),
            ("key=k&state=buried", (VERBS[0], *VERBS[2:]), 1),
            ("key=k&state=taken", (), 0),
        ):
            page = browser.get(f"{MAIL}?{query}")
            assert (drawn(page), page.count('name="task" value="0')) == ([*verbs], ticks), query
        assert "pri" not in drawn(browser.get(path_of("plain")))
        asked_ = browser.post(path_of("plain", "pri-tasks"), 409, task=ids[:1], sure="yes", pri="1")
        assert "does not support" in shown(asked_.text)
    with browsing(db) as browser:
        assert drawn(browser.get(MAIL)) == []
        assert "read-only" in asked(browser, "bury", ids, 403, sure="yes")


# Roles, hidden parts, and the audit.


def test_refused_actions_are_neither_drawn_nor_done(db: Database, mail: TaskQueue) -> None:
    ids = put(mail, db, {"card": "k-sesame"})

    def by_role(request: Request, action: str, queue: str | None) -> bool:
        return authorize(request, action, queue)

    with browsing(db, write=True, authorize=by_role) as browser:
        for role, verbs in (("guest", []), ("clerk", ["bury", "pri"]), ("owner", [*VERBS[1:]])):
            assert drawn(as_role(browser, role).get(MAIL)) == verbs
            for verb in {*VERBS} - {*verbs, "kick"}:
                for sure in ("", "yes"):
                    asked(browser, verb, ids, 403, sure=sure, into="post", pri="1")
            assert states(mail, db) == {"ready": 1}
        as_role(browser, "clerk")
        said = asked(browser, "bury", ids)
        assert (HIDDEN in said, "sesame" in said) == (True, False)
        asked(browser, "bury", "", 403, all="yes", back="data=card%3Dk-sesame")
        asked(browser, "bury", ids, 403, csrf="x", sure="yes")
    assert of(db) == []
    with browsing(db, write=True, redact=["data.card"]) as browser:
        said = asked(browser, "bury", ids)
        assert (HIDDEN in said, "sesame" in said) == (True, False)
        asked(browser, "bury", "", 403, all="yes", back="data=card%3Dk-sesame")


def test_an_action_on_ticked_tasks_is_in_the_audit(
    db: Database, mail: TaskQueue, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ids = put(mail, db, *range(3), key="sesame")
    with browsing(db, write=True, actor=lambda _: "ann") as browser:
        done(browser, "pri", ids, pri="7", back="key=sesame")
        done(browser, "bury", ids[:2])
        done(browser, "delete", ids[1:])
    told = [(line.action, line.actor, line.tasks, line.after) for line in of(db) if line.phase == "ended"]
    assert told == [
        ("delete", "ann", 2, {"state": "delete"}),
        ("bury", "ann", 2, {"state": "buried"}),
        ("pri", "ann", 3, {"pri": "7"}),
    ]
    assert trash.listed(mail, db)[0].actor == "ann"
    said = [one.getMessage() for one in caplog.records if one.name == "fdbqueue.dashboard"]
    assert ("2 tasks were buried" in said[1], "sesame" in str(said)) == (True, False)


def test_a_full_queue_ends_a_move(db: Database) -> None:
    mail = TaskQueue.create(db, "mail", "limfifottl")
    TaskQueue.create(db, "small", "limfifottl", capacity=2)
    ids = put(mail, db, *range(3))
    with browsing(db, write=True) as browser:
        asked(browser, "move", ids, 409, into="small", sure="yes")
    assert (states(mail, db), of(db)[0].phase, of(db)[0].tasks) == ({"ready": 1}, "stopped", 2)
