"""The auditor's rule for commits that a power cut may undo, on steps made by hand."""

from collections import Counter

import pytest
from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue.core.line.decision import Delivery
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.stored.records import ID_BYTES, NEVER_US, SESSION_BYTES, Record
from fdbqueue.testing.trace import Commit
from tests.system.audit.agreement import lost_in_root, lost_items, lost_leases
from tests.system.audit.line import Handed, LineStep
from tests.system.audit.model import Mirror, Move, Step, TaskStep, Values

ID, SESSION = bytes(ID_BYTES), bytes(SESSION_BYTES)
READY = Record(ID, TaskState.READY, 0, 0, NEVER_US, 10, 0)
TAKEN = replace(READY, state=TaskState.TAKEN, attempts=1, until_us=9, session=SESSION, token=b"t")
SHAPE = shape_of(Registry(DEFAULT_ROOT), Definition("jobs", 0, "fifo", {}))
LOST = Commit(7, 6, "worker/thread", "worker", 1, "", 0, may_be_lost=True)
CHANGED = Values(b"old", b"new")


class Sessions(Mirror):
    """The session of these steps, with its name."""

    def __init__(self, name: str | None) -> None:
        super().__init__()
        self._name = name

    def value(self, key: bytes) -> bytes | None:
        assert key == SHAPE.root.session(SESSION)
        record: bytes = layer.pack((b"opener", self._name, 1))
        return record


def judged(
    before: Record | None,
    after: Record | None,
    *keys: bytes,
    name: str | None = None,
    line: LineStep | None = None,
    **calls: int,
) -> str:
    tasks = {ID: after} if after is not None else {}
    changes = Step(LOST, dict.fromkeys(keys, CHANGED))
    step = TaskStep(LOST, changes, {ID: Move(before, after)}, tasks, Counter(calls))
    return "\n".join(lost_leases(SHAPE, step, line or LineStep(), Sessions(name)))


@pytest.mark.parametrize(
    ("before", "after", "call"),
    [
        (READY, TAKEN, "take"),
        (TAKEN, READY, "ttr"),
        (TAKEN, replace(READY, state=TaskState.DELAYED), "release"),
        (TAKEN, replace(TAKEN, until_us=10), "other"),
        (TAKEN, replace(TAKEN, token=b"u", attempts=2), "take"),
    ],
)
def test_a_power_cut_may_undo_a_lease(before: Record, after: Record, call: str) -> None:
    assert judged(before, after, SHAPE.keys.task(ID), SHAPE.keys.counters, **{call: 1}) == ""


@pytest.mark.parametrize(
    ("before", "after", "call", "told"),
    [
        (None, READY, "put", "it counts {'put': 1}"),
        (TAKEN, None, "ack", "does more to the task"),
        (TAKEN, replace(READY, state=TaskState.BURIED), "bury", "does more to the task"),
        (TAKEN, replace(TAKEN, until_us=10, ttr_us=11), "touch", "than renew its lease"),
        (TAKEN, replace(TAKEN, fraction=0.5), "other", "than renew its lease"),
        (TAKEN, replace(TAKEN, cancelled_us=1), "other", "than renew its lease"),
    ],
)
def test_a_power_cut_may_undo_nothing_else(
    before: Record | None, after: Record | None, call: str, told: str
) -> None:
    assert told in judged(before, after, SHAPE.keys.task(ID), **{call: 1})


def test_a_power_cut_may_not_undo_a_payload() -> None:
    assert "more than leases" in judged(READY, TAKEN, SHAPE.keys.payload(ID, 0))


def test_a_named_session_takes_durably() -> None:
    assert "a named session takes" in judged(READY, TAKEN, name="worker")


def test_a_delivery_to_a_named_session_may_be_undone() -> None:
    """Its collection may not: it makes the delivery durable."""
    handed = Handed(b"r", "worker", [Delivery(ID, b"")], False)
    assert judged(READY, TAKEN, name="worker", line=LineStep(laid=[handed])) == ""
    collected = LineStep(collected=[handed._replace(by_owner=True)])
    assert "a named session takes" in judged(TAKEN, TAKEN, name="worker", line=collected)


def test_a_power_cut_may_not_undo_a_plain_dequeue() -> None:
    assert list(lost_items(Step(LOST, {}))) != []


def test_a_power_cut_may_undo_a_heartbeat_without_an_opener() -> None:
    keys = RootKeys(DEFAULT_ROOT)
    beat = [keys.heartbeat(SESSION), keys.beat_due(1, SESSION)]
    assert list(lost_in_root(keys, Step(LOST, dict.fromkeys(beat, CHANGED)))) == []
    for key in (keys.opener(SESSION, b"o"), keys.session(SESSION), keys.definition("jobs")):
        assert list(lost_in_root(keys, Step(LOST, {key: CHANGED}))) != []
