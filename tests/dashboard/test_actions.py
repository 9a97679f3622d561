"""Each action happens once, after a confirmation, with --write only, and is logged."""

import logging
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, DeadLetters, Failure, TaskQueue
from fdbqueue.core import limits
from fdbqueue.operate.dashboard.actions import QUEUE_ACTIONS, TASK_ACTIONS
from tests.dashboard.conftest import NAME, Served
from tests.dashboard.support import browsing, path_of
from tests.support import wait_until


@pytest.fixture
def queue(served: Served) -> Any:
    created = TaskQueue.create(served.db, "acted", "fifottl")
    yield created
    served.clock.advance(60)
    created.truncate(served.db)
    created.drop(served.db)


def bury(served: Served, queue: TaskQueue, error: str = "ValueError", data: Any = "x") -> str:
    id_ = queue.put(served.db, data).id
    queue.bury(served.db, id_, failure=Failure(error, "odd"))
    return id_


@pytest.mark.commits_by_hand  # each transaction of an action has a timeout
def test_actions_happen_on_every_engine(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifo", root=space)
    id_ = queue.put(db, 1).id
    with browsing(db, write=True, root=space) as browser:
        assert browser.act("/queues/q/pause") == "Paused: no task is taken until it is resumed."
        assert queue.paused(db)
        browser.act("/queues/q/resume")
        assert not queue.paused(db)
        assert browser.act(f"/queues/q/tasks/{id_}/bury") == "The task is buried."
        assert browser.act("/queues/q/kick", count="9") == "1 task kicked."
        assert browser.act(f"/queues/q/tasks/{id_}/delete") == "The task is deleted."
        assert browser.said(f"/queues/q/tasks/{id_}", 404)
        assert queue.statistics(db)["tasks"]["total"] == 0
    db.clear_range_startswith(space.key())


def test_a_dashboard_without_write_changes_nothing(served: Served) -> None:
    actions = [path_of(NAME, name) for name in QUEUE_ACTIONS]
    actions += [path_of(NAME, "tasks", served.ids["buried"], name) for name in TASK_ACTIONS]
    before = served.queue.statistics(served.db)
    for action in actions:
        assert "read-only" in served.reader.post(action, 403, sure="yes", data="1", count="9").text
    assert served.queue.statistics(served.db) == before
    for path in ("/", path_of(NAME), path_of(NAME, "dead"), path_of(NAME, "tasks", served.ids["buried"])):
        assert '<form method="post"' not in served.reader.get(path)


def test_a_form_without_confirmation_changes_nothing(served: Served, queue: TaskQueue) -> None:
    asked = served.writer.post("/queues/acted/pause", 200)
    assert "No task of this queue will be taken" in asked.text
    assert not queue.paused(served.db)


@pytest.mark.parametrize("csrf", ["", "x", "0" * 64])
def test_a_form_of_another_site_changes_nothing(served: Served, queue: TaskQueue, csrf: str) -> None:
    said = served.writer.post("/queues/acted/pause", 403, sure="yes", csrf=csrf).text
    assert "no longer valid" in said
    assert not queue.paused(served.db)


def test_a_task_is_cancelled_and_kicked(served: Served, queue: TaskQueue) -> None:
    ready, buried = queue.put(served.db, 1).id, bury(served, queue)
    browser = served.writer
    assert browser.act(f"/queues/acted/tasks/{ready}/cancel") == "The task is cancelled."
    assert browser.act(f"/queues/acted/tasks/{buried}/kick") == "The task is ready again."
    assert queue.peek(served.db, buried).state == "r"
    taken = queue.take(served.db, 0)
    assert taken is not None
    said = browser.act(f"/queues/acted/tasks/{taken.id}/cancel")
    assert said.startswith("The task is marked")
    queue.ack(served.db, taken)


def test_a_task_that_was_handed_off_is_completed_or_failed(served: Served, queue: TaskQueue) -> None:
    """Only such a task has these buttons."""
    browser, paths = served.writer, []
    for n in range(2):
        id_ = queue.put(served.db, n, result_ttl=60).id
        paths.append(f"/queues/acted/tasks/{id_}")
        task = queue.take(served.db, 0)
        assert task is not None
        assert f"{paths[-1]}/complete" not in browser.get(paths[-1])
        assert "not handed off" in browser.post(f"{paths[-1]}/complete", 409, sure="yes").text
        queue.hand_off(served.db, task, 50, for_="<b>Ada</b>")
        assert "waits for &lt;b&gt;Ada&lt;/b&gt;." in browser.get(paths[-1])
        assert f"{paths[-1]}/complete" in browser.get(paths[-1])
    first, second = (path.rpartition("/")[2] for path in paths)
    browser.post(f"{paths[0]}/complete", 400, sure="yes", result="{")
    assert browser.act(f"{paths[0]}/complete", result='{"n": 7}') == "The task is completed."
    assert queue.result(served.db, first, 0) == {"n": 7}
    assert browser.act(f"{paths[1]}/fail", reason="declined").startswith("The attempt has failed")
    assert queue.failures(served.db, second)[0].message == "declined"


@pytest.mark.parametrize(
    ("codec", "before", "shown", "text", "after"),
    [
        ("json", {"n": 1}, '"n": 1', '{"n": "<b>"}', {"n": "<b>"}),
        ("msgpack", [1], "1", "[2]", [2]),
        ("bytes", b"a\nb", "a b", "c\r\nd", b"c\nd"),
    ],
)
def test_the_data_of_a_buried_task_is_edited(
    served: Served, codec: str, before: Any, shown: str, text: str, after: Any
) -> None:
    queue = TaskQueue.create(served.db, "edited", "fifo", codec=codec)
    id_ = bury(served, queue, data=before)
    path = f"/queues/edited/tasks/{id_}"
    assert shown in served.writer.said(path)
    assert "<textarea" in served.writer.get(path)
    assert served.writer.act(f"{path}/edit", data=text) == "The task has the new data."
    assert queue.peek(served.db, id_).data == after
    served.writer.act(f"{path}/edit", data=text, kick="yes")
    assert queue.peek(served.db, id_).state == "r"
    queue.drop(served.db)


def test_data_that_a_form_would_change_has_no_form(served: Served) -> None:
    queue = TaskQueue.create(served.db, "kept", "fifo", codec="bytes")
    for data in (b"a\r\nb", b"\xff", b"x" * 200_000):
        page = served.writer.get(f"/queues/kept/tasks/{bury(served, queue, data=data)}")
        assert "<textarea" not in page
    queue.drop(served.db)


def test_a_class_is_kicked_and_redriven(served: Served, queue: TaskQueue) -> None:
    for error in ("A", "A", "B"):
        bury(served, queue, error)
    assert served.writer.act("/queues/acted/kick-class", error="A", back="dead") == "2 tasks kicked."
    assert served.writer.act("/queues/acted/redrive", error="B", rate="1000") == "The redrive has begun."
    wait_until(lambda: queue.statistics(served.db)["tasks"]["buried"] == 0)
    letters = DeadLetters.open(served.db, "acted")
    wait_until(lambda: (redrive := letters.redrive(served.db)) is not None and redrive.state == "done")
    redrive = letters.redrive(served.db)
    assert redrive is not None
    assert redrive.moved == 1


def test_one_click_kicks_a_bounded_number(
    served: Served, queue: TaskQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "VERB_BATCH", 2)
    monkeypatch.setattr(limits, "KICKED_MAX", 4)
    for _ in range(6):
        bury(served, queue)
    said = served.writer.act("/queues/acted/kick-class", error="ValueError")
    assert said == "4 tasks kicked. Others are left: a redrive moves all."


def test_a_redrive_is_paused_resumed_and_stopped(served: Served, queue: TaskQueue) -> None:
    for _ in range(3):
        bury(served, queue)
    letters, browser = DeadLetters.open(served.db, "acted"), served.writer
    letters.begin_redrive(served.db, rate_per_s=1e-3)
    assert browser.act("/queues/acted/redrive-pause") == "The redrive is paused."
    assert "Go on" in browser.get("/queues/acted")
    assert browser.act("/queues/acted/redrive-resume") == "The redrive goes on."
    assert browser.act("/queues/acted/redrive-stop").startswith("The redrive is stopped")
    assert "There is no redrive" in browser.post("/queues/acted/redrive-stop", 409, sure="yes").text


@pytest.mark.parametrize(
    ("action", "fields", "status"),
    [
        ("kick", {"count": "0"}, 400),
        ("kick", {"count": "many"}, 400),
        ("kick", {"count": "9" * 30}, 400),
        ("redrive", {"rate": "-1"}, 400),
        ("redrive", {"rate": "nan"}, 400),
        ("redrive", {"limit": "x"}, 400),
        ("redrive", {"into": "nowhere"}, 404),
        ("explode", {}, 404),
        ("tasks/x/kick", {}, 400),
        (f"tasks/{'0' * 32}/kick", {}, 404),
        (f"tasks/{'0' * 32}/explode", {}, 404),
    ],
)
def test_wrong_fields_get_a_sentence(
    served: Served, queue: TaskQueue, action: str, fields: dict[str, str], status: int
) -> None:
    served.writer.post(f"/queues/{queue.name}/{action}", status, sure="yes", **fields)


def test_an_action_that_does_not_fit_gets_a_sentence(served: Served, queue: TaskQueue) -> None:
    id_ = queue.put(served.db, 1).id
    said = served.writer.post(f"/queues/acted/tasks/{id_}/kick", 409, sure="yes").text
    assert "is ready, not buried" in said
    buried = bury(served, queue)
    wrong = served.writer.post(f"/queues/acted/tasks/{buried}/edit", 400, sure="yes", data="{")
    assert "a text needs its quotes" in wrong.text


def test_each_action_is_logged(served: Served, queue: TaskQueue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fdbqueue.dashboard")
    id_ = bury(served, queue)
    served.writer.act(f"/queues/acted/tasks/{id_}/delete")
    served.writer.post(f"/queues/acted/tasks/{id_}/delete", 404, sure="yes")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" by ")[0] for line in lines] == [f"delete of 'acted' {id_}"] * 2
    assert "testclient" in lines[0]
    assert "was refused" in lines[1]


def test_a_link_cannot_invent_an_outcome(served: Served) -> None:
    page = served.writer.said(path_of(NAME) + "?done=Pay+here&by=" + "0" * 32)
    assert "Pay here" not in page


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x" * 2_000_000, "application/x-www-form-urlencoded", 413),
        (b"csrf=%ff", "application/x-www-form-urlencoded", 400),
        (b"&".join(b"a=1" for _ in range(99)), "application/x-www-form-urlencoded", 400),
        (b"{}", "application/json", 415),
        (b"", "multipart/form-data; boundary=x", 415),
    ],
)
def test_forms_that_cannot_be_read_are_refused(served: Served, body: bytes, kind: str, status: int) -> None:
    answer = served.writer.client.post(path_of(NAME, "pause"), content=body, headers={"Content-Type": kind})
    assert answer.status_code == status
