"""A request sees and does what its role may, each action has a line, and no answer tells a hidden value."""

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from starlette.requests import Request

from fdbqueue import Database, Failure, Limit, Schedule, TaskQueue
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.redaction import HIDDEN
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.task import LongRun
from fdbqueue.operate.audit import AuditLine, Deed, Trail, lines, told_values
from fdbqueue.operate.dashboard import create_app
from fdbqueue.operate.dashboard.looks import TaskLook
from fdbqueue.operate.dashboard.roles import Roles
from fdbqueue.operate.exports import trash
from fdbqueue.tasks.firing import ScheduleState
from fdbqueue.tasks.rows import reasons_of
from tests.dashboard.support import Browser, browsing, path_of

SECRET, TOKEN = 'k-sesame-<"é">', "s3cr3t-t0ken"
ROLES = {
    "owner": {"look", "payloads", "act", "purge"},
    "clerk": {"look", "act"},
    "guest": {"look"},
}


def authorize(request: Request, action: str, queue: str | None) -> bool:
    role = request.headers.get("x-role", "")
    return role == "owner" or (action in ROLES.get(role, ()) and queue == "mail")


@pytest.fixture
def ids(db: Database) -> dict[str, str]:
    mail, pay = (TaskQueue.create(db, name, "utubettl", retain_s=60) for name in ("mail", "payroll"))
    Limit.set(db, "api", slots=1)
    data, ids = {"card": SECRET, "name": "ann"}, {}
    for name in ("ended", "buried", "taken", "ready"):
        key = f"{name} {SECRET}"
        ids[name] = mail.put(db, data, headers={"token": TOKEN}, key=key, unique=key).id
        task = mail.take(db, 0) if name != "ready" else None
        if name == "ended":
            mail.ack(db, task or "")
        if name == "buried":
            assert task is not None
            told = f"the card {SECRET} of {json.dumps(data)}"
            mail.bury(db, task, failure=Failure("Declined", told, f"Traceback\n  {told}"))
    pay.put(db, data)
    Schedule.create(db, "nightly", every=60, queue="mail")
    failed = msgspec.msgpack.encode(ScheduleState(error=f"no {SECRET}"))
    run(db, lambda tr: tr.set(RootKeys(DEFAULT_ROOT).schedule_state("nightly"), failed))
    return ids


def of(db: Database) -> list[AuditLine]:
    return run(db, lambda tr: lines(tr, RootKeys(DEFAULT_ROOT)))


def as_role(browser: Browser, role: str) -> Browser:
    browser.client.headers["x-role"] = role
    return browser


def pages_of(ids: dict[str, str]) -> list[str]:
    states = [f"{path_of('mail')}?state={state}" for state in ("ready", "taken", "buried", "ended")]
    tasks = [path_of("mail", "tasks", id_) for id_ in ids.values()]
    return [
        "/",
        "/audit",
        *states,
        *tasks,
        path_of("mail", "dead"),
        f"{path_of('mail', 'dead')}?error=Declined",
    ]


@pytest.fixture
def browser(db: Database, ids: dict[str, str]) -> Iterator[Browser]:
    assert ids

    def actor(request: Request) -> str:
        return f"{request.headers['x-role']}@example.com"

    with browsing(db, write=True, authorize=authorize, actor=actor) as browser:
        yield browser


def test_a_refused_queue_is_neither_drawn_nor_answered(browser: Browser) -> None:
    first = as_role(browser, "guest").get("/")
    assert "mail" in first
    assert "payroll" not in first
    assert "api" not in browser.said("/")
    for path in ("/queues/payroll", "/queues/payroll/dead", "/queues/payroll/tasks/00", "/queues/none"):
        assert "You may not look at this queue." in browser.said(path, 403)
    assert "payroll" in as_role(browser, "owner").get("/")
    assert "/queues/" not in as_role(browser, "").get("/")
    browser.get(path_of("mail"), 403)


@pytest.mark.usefixtures("ids")
def test_a_badge_tells_the_actions_of_its_reader(browser: Browser, db: Database) -> None:
    path = path_of("mail")
    for role, told in (("guest", "look"), ("clerk", "look, act"), ("owner", "look, payloads, act, purge")):
        assert f">You may {told}<" in as_role(browser, role).get(path)
    assert "You may" not in browser.get("/")
    for write, told in ((True, "Actions on"), (False, "Read-only")):
        with browsing(db, write=write) as plain:
            assert all(f">{told}<" in plain.get(one) for one in ("/", path))


def test_no_reason_names_a_hidden_queue(db: Database) -> None:
    Limit.set(db, "api", slots=1)
    mail, pay = (TaskQueue.create(db, name, limits=["api"]) for name in ("mail", "payroll"))
    held, waits = pay.put(db, 1).id, mail.put(db, 1).id
    assert pay.take(db, 0)
    path = path_of("mail", "tasks", waits)
    with browsing(db, authorize=authorize) as browser:
        assert f"by {held} of 'payroll'." in as_role(browser, "owner").said(path)
        page = as_role(browser, "guest").said(path)
        assert "1 of 1 are held, by ***." in page
        assert not [name for name in (held, "payroll") if name in page]


def test_no_run_of_a_hidden_queue_is_named(db: Database) -> None:
    mail = TaskQueue.create(db, "mail")
    found = mail.explain(db, mail.put(db, 1))
    runs = (LongRun("1a", "pay roll", 90.0, 1.0, "host", 1), LongRun("1b", "mail", 9.0, None, "host", 1))
    busy = replace(found, workers=1, full_s=9.0, runs=runs)
    look = TaskLook("mail", 0.0, explanation=replace(busy, reasons=reasons_of(busy, ())))
    guest = Request({"type": "http", "headers": [(b"x-role", b"guest")]})
    seen = Roles(authorize=authorize).seen(guest, "mail", look).explanation
    assert seen is not None
    [told] = seen.reasons
    assert "The longest runs are *** for 90 s, 1b of mail for 9.0 s" in told.text
    assert told.cure == HIDDEN


def test_refused_actions_have_no_buttons(browser: Browser, ids: dict[str, str]) -> None:
    task, buried = path_of("mail", "tasks", ids["ready"]), path_of("mail", "tasks", ids["buried"])
    for role, shown in (("guest", ()), ("clerk", ("bury",)), ("owner", ("bury", "cancel", "delete"))):
        page = as_role(browser, role).get(task)
        found = [name for name in ("bury", "cancel", "delete") if f"{task}/{name}" in page]
        assert found == [*shown], role
        assert (f"{buried}/edit" in browser.get(buried)) == (role == "owner")
        assert (f"{path_of('mail')}/pause" in browser.get(path_of("mail"))) == (role != "guest")


def test_the_trash_is_restored_and_emptied_by_who_may_purge(browser: Browser, db: Database) -> None:
    mail, path = TaskQueue.open(db, "mail"), path_of("mail")
    assert "Trash" not in as_role(browser, "owner").get(path)
    trash.purge(mail, db, "ann")
    assert "3 tasks until" in browser.said(path)
    assert (f"{path}/trash-restore" in browser.get(path)) is True
    assert f"{path}/trash-restore" not in as_role(browser, "clerk").get(path)
    browser.post(f"{path}/trash-empty", 403, sure="yes")
    assert len(trash.listed(mail, db)) == 1
    as_role(browser, "owner").post(f"{path}/trash-restore", sure="yes")
    assert mail.statistics(db)["tasks"]["total"] == 3
    trash.purge(mail, db, "ann")
    [first] = trash.listed(mail, db)
    mail.put(db, "later", key="later")
    trash.purge(mail, db, "ann")
    page = browser.get(path)
    assert [f'name="purge" value="{one.id}"' in page for one in trash.listed(mail, db)] == [True, True]
    assert (
        f'name="purge" value="{first.id}"' in browser.post(f"{path}/trash-restore", 200, purge=first.id).text
    )
    browser.post(f"{path}/trash-restore", sure="yes", purge=first.id)
    assert [one.tasks for one in trash.listed(mail, db)] == [1]
    browser.post(f"{path}/trash-empty", sure="yes")
    assert trash.listed(mail, db) == []
    told = [(line.action, line.tasks) for line in of(db) if line.phase == "ended"]
    assert told == [("trash-empty", 1), ("trash-restore", 3), ("trash-restore", 3)]
    assert browser.act(f"{path}/trash-restore") == "0 tasks restored."


def test_refused_actions_change_nothing(browser: Browser, db: Database, ids: dict[str, str]) -> None:
    before = TaskQueue.open(db, "mail").statistics(db)["tasks"]
    task, buried = path_of("mail", "tasks", ids["ready"]), path_of("mail", "tasks", ids["buried"])
    as_role(browser, "guest").post(f"{path_of('mail')}/pause", 403, sure="yes")
    as_role(browser, "clerk").post(f"{task}/delete", 403, sure="yes")
    browser.post(f"{buried}/edit", 403, sure="yes", data="1")
    browser.post("/queues/payroll/pause", 403, sure="yes")
    browser.post("/queues/mail/redrive", 403, sure="yes", into="payroll", rate="1")
    browser.post("/queues/mail/kick-class", 403, sure="yes", text="sesame")
    browser.get(f"{path_of('mail', 'dead')}?text=sesame", 403)
    browser.post("/queues/mail/redrive", 403, sure="yes", into="mail", rate="1")
    assert TaskQueue.open(db, "mail").statistics(db)["tasks"] == before
    assert of(db) == []


def test_each_action_is_a_line_with_its_actor(
    browser: Browser, db: Database, ids: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    as_role(browser, "clerk").act("/queues/mail/pause")
    browser.act("/queues/mail/kick", count="5")
    as_role(browser, "owner").act(path_of("mail", "tasks", ids["ready"], "delete"))
    browser.act("/queues/payroll/pause")
    found = [(line.actor.partition("@")[0], line.action, line.phase, line.tasks) for line in of(db)]
    assert found == [
        ("owner", "pause", "done", None),
        ("owner", "delete", "done", 1),
        ("clerk", "kick", "ended", 1),
        ("clerk", "kick", "begun", None),
        ("clerk", "pause", "done", None),
    ]
    assert of(db)[1].before == {"state": "ready"}
    assert (of(db)[4].before, of(db)[4].after) == ({"paused": "False"}, {"paused": "True"})
    assert "clerk@example.com" in caplog.text
    assert "payroll" in browser.said("/audit")
    page = as_role(browser, "guest").said("/audit")
    assert "clerk@example.com" in page
    assert "payroll" not in page


def test_no_line_tells_the_name_of_a_hidden_queue(browser: Browser, db: Database) -> None:
    as_role(browser, "owner").act("/queues/mail/redrive", into="payroll", rate="0.001")
    assert of(db)[0].after == {"rate": "0.001", "into": "payroll"}
    for path in ("/audit", path_of("mail", "dead")):
        assert "payroll" in as_role(browser, "owner").said(path)
        assert "payroll" not in as_role(browser, "guest").said(path)


def test_the_weights_in_a_line_hide_their_keys(browser: Browser, db: Database) -> None:
    after = told_values({"weights": {"sesame": 3}})
    TaskQueue.open(db, "mail").pause(
        Trail(db, DEFAULT_ROOT, Deed("ann", "alter", "mail", after=after)).over()
    )
    assert "sesame=3" in as_role(browser, "owner").said("/audit")
    page = as_role(browser, "guest").said("/audit")
    assert "***=3" in page
    assert "sesame" not in page


def test_a_line_tells_no_field_that_its_action_ignores(browser: Browser, db: Database) -> None:
    as_role(browser, "owner").act("/queues/mail/pause", limit="7", count="3", error="Declined")
    assert of(db)[0].after == {"paused": "True"}


def test_a_refused_edit_logs_no_data(
    browser: Browser, ids: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    edit = path_of("mail", "tasks", ids["buried"], "edit")
    as_role(browser, "owner").post(edit, 400, sure="yes", data="card sesame")
    assert "refused" in caplog.text
    assert "sesame" not in caplog.text


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize("answer", ["raises", None, 1, "yes"])
def test_a_broken_authorize_refuses(db: Database, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> Any:
        return 1 / 0 if answer == "raises" else answer

    with browsing(db, write=True, authorize=broken) as browser:
        assert "/queues/" not in browser.get("/")
        browser.get(path_of("mail"), 403)
        browser.post("/queues/mail/pause", 403, sure="yes")
    assert "authorize" in caplog.text
    assert not TaskQueue.open(db, "mail").paused(db)


@pytest.mark.usefixtures("ids")
@pytest.mark.parametrize("answer", ["raises", None, "", 7, "x" * 300])
def test_a_broken_actor_refuses_actions(db: Database, answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_: Request) -> Any:
        return 1 / 0 if answer == "raises" else answer

    with browsing(db, write=True, actor=broken) as browser:
        assert "mail" in browser.get("/")
        browser.post("/queues/mail/pause", 403, sure="yes")
    assert "actor" in caplog.text
    for wrong in ({"authorize": 7}, {"actor": "ann"}, {"redact": "data.card"}, {"redact": ["card"]}):
        with pytest.raises(InvalidArgument):
            create_app(db, **wrong)


PATHS = ["data.card", "headers.token", "key", "unique"]


def hides(path: str, _: object) -> bool:
    return path in PATHS


@pytest.mark.parametrize("given", [{"redact": PATHS}, {"redact": hides}, {"authorize": authorize}])
def test_no_answer_or_log_tells_a_hidden_value(
    db: Database, ids: dict[str, str], given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    answers = []
    with browsing(db, write=True, **given) as browser:
        as_role(browser, "clerk")
        answers += [browser.get(path) for path in pages_of(ids)]
        edit = path_of("mail", "tasks", ids["buried"], "edit")
        answers.append(browser.post(edit, 403, sure="yes", data="1").text)
        answers.append(browser.get(f"{path_of('mail', 'dead')}?text=sesame", 403))
        for path in (path_of("mail", "tasks", ids["buried"], "kick"), path_of("mail", "pause")):
            answers.append(browser.act(path))
    forms = ("sesame", TOKEN, "k-sesame")
    for answer in (*answers, caplog.text, repr(of(db))):
        assert not [form for form in forms if form in answer.replace("text=sesame", "")], answer
    assert sum(answer.count(HIDDEN) for answer in answers) > 10
    assert f"{edit}" not in "".join(answers[:-4])


def test_events_tell_the_queues_of_the_request(browser: Browser) -> None:
    streams = browser.client.app.state.streams  # type: ignore[attr-defined]
    scope = {"type": "http", "headers": [(b"x-role", b"guest")], "root_path": ""}

    async def first(queue: str | None) -> str:
        events = streams._events(Request(scope), queue)
        await anext(events)
        found = await anext(events)
        await events.aclose()
        return str(found.decode())

    assert browser.client.portal is not None
    whole = browser.client.portal.call(first, None)
    assert "mail" in whole
    assert "payroll" not in whole
    assert "silence" in browser.client.portal.call(first, "payroll")
