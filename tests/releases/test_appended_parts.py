"""Parts that a newer release appends to a record are kept by this one, which cannot read them."""

from collections.abc import Callable
from typing import Any

import msgspec
from fdb.subspace_impl import Subspace

from fdbqueue import Database, Failure, Group, Limit, Schedule, Session, TaskQueue, fire_due
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.tasks.group_settling import row_of
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.stored.records import TaskKeys, id_bytes, record_of

NEWER = ["newer", {"of": b"\x00"}, 7]


def append_to(db: Database, key: bytes, *path: int) -> None:
    """Append the parts to the last array of a msgpack array, or of the array at `path` in it."""
    whole = msgspec.msgpack.decode(db[key])
    part = whole
    for number in path:
        part = part[number]
    part[-1] += NEWER
    db[key] = msgspec.msgpack.encode(whole)


def last_of(db: Database, key: bytes) -> Any:
    return msgspec.msgpack.decode(db[key])[-1]


def test_a_task_keeps_them_in_each_state(db: Database, space: Subspace) -> None:
    queue = TaskQueue.create(db, "q", "fifottl", root=space)
    keys = TaskKeys(queue.contents)
    id_ = queue.put(db, 1, headers={"a": "b"}).id
    for key in (keys.task(id_bytes(id_)), next(iter(db.get_range(keys.ready.start, keys.ready.stop))).key):
        append_to(db, key, -1)

    def require() -> None:
        extra = record_of(db[keys.task(id_bytes(id_))]).extra
        assert extra is not None
        assert list(extra.more) == NEWER

    with Session(db, root=space) as session:
        steps: list[Callable[[Any], Any]] = [
            lambda _: queue.take(db, 0, session=session),
            lambda task: queue.touch(db, task, 10),
            lambda task: queue.step(db, task, "half", lambda: 1) and task,
            lambda task: queue.release(db, task, delay=0),
            lambda _: queue.take(db, 0, session=session),
            lambda task: queue.bury(db, task, failure=Failure("ValueError", "no")),
            lambda _: queue.kick(db, 1),
            lambda _: queue.take(db, 0, session=session),
        ]
        task = None
        for step in steps:
            task = step(task)
            require()
        queue.ack(db, task)


def test_a_limit_keeps_them(db: Database, space: Subspace) -> None:
    Limit.set(db, "api", slots=3, root=space)
    row = LimitKeys(space.key(), "api").row
    append_to(db, row)
    Limit.set(db, "api", slots=5, root=space)
    assert last_of(db, row) == NEWER


def test_a_group_keeps_them(db: Database, space: Subspace) -> None:
    group = Group.create(db, root=space)
    key = RootKeys(space).group(group._group)
    append_to(db, key)
    group.close(db)
    assert list(row_of(db[key]).more) == NEWER
    assert not row_of(db[key]).is_open


def test_a_schedule_and_its_state_keep_them(db: Database, space: Subspace) -> None:
    TaskQueue.create(db, "reports", root=space)
    schedule = Schedule.create(db, "s", every=60, queue="reports", root=space)
    keys = RootKeys(space)
    stored = (keys.schedule("s"), keys.schedule_state("s"))
    for key in stored:
        append_to(db, key)
    verbs: list[Callable[[], Any]] = [
        lambda: schedule.pause(db),
        lambda: schedule.resume(db),
        lambda: schedule.change(db, every=90),
        lambda: fire_due(db, root=space),
        lambda: schedule.run(db),
    ]
    for verb in verbs:
        verb()
        assert [last_of(db, key) for key in stored] == [NEWER, NEWER]
