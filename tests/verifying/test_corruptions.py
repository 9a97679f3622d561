"""Planted corruptions: each is found and named, nothing else is changed, and its cure ends it."""

import shlex
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from fdb import tuple as layer
from fdb.subspace_impl import Subspace
from msgspec.structs import replace

import fdbqueue
from fdbqueue import Database, Flaw, TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.line.decision import Due, Notice, Ticket, notice_value, renewal_value
from fdbqueue.core.registry import Registry
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.task import TaskState
from fdbqueue.operate.verify import root as orphans
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.values import command
from fdbqueue.operate.verify.verify import counts_of_tasks, subject_of
from fdbqueue.tasks.options import key_bytes
from fdbqueue.tasks.stored.key_counts import slug_of, state_of
from fdbqueue.tasks.stored.records import COUNTER_NAMES, LIVE_NAMES, id_in, id_text, packed, record_to_bytes
from tests.guard import TEST_ROOT
from tests.verifying.places import KEY, Place, missing_id, place

READY, TAKEN, DELAYED, BURIED = TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED
MEND = "--mend"
RID, STAMP = b"r" * 12, b"s" * 10
OTHER = b"another session!"

Plant = Callable[[Place, Any], object]


def unreadable(state: TaskState) -> Plant:
    return lambda at, tr: tr.set(at.keys.task(at.record(state).id), b"no record")


def without_entry(state: TaskState) -> Plant:
    return lambda at, tr: tr.clear(at.entry(at.record(state)))


def without_record(state: TaskState) -> Plant:
    return lambda at, tr: tr.clear(at.keys.task(at.record(state).id))


def in_two_states(at: Place, tr: Any) -> None:
    tr.set(at.keys.delayed_at(at.record(READY).id), b"")


def other_copy(at: Place, tr: Any) -> None:
    record = at.record(READY)
    tr.set(at.entry(record), record_to_bytes(replace(record, attempts=99)))


def without_timer(at: Place, tr: Any) -> None:
    record = at.record(DELAYED)
    tr.clear(at.keys.timer(record.timer_us, record.id))


def with_another_timer(at: Place, tr: Any) -> None:
    record = at.record(DELAYED)
    tr.set(at.keys.timer(record.timer_us + 1, record.id), b"")


def without_a_piece(at: Place, tr: Any) -> None:
    tr.clear(at.keys.payload(at.record(READY, large=True).id, 1))


def counted(**changes: int) -> Plant:
    return lambda at, tr: tr.add(at.keys.counters, packed(COUNTER_NAMES, changes))


def held_by_no_session(at: Place, tr: Any) -> None:
    record = at.record(TAKEN)
    stranger = replace(record, session=OTHER)
    tr.clear(at.entry(record))
    tr.set(at.keys.task(record.id), record_to_bytes(stranger))
    tr.set(at.entry(stranger), record.key)


def result_without_notice(at: Place, tr: Any) -> None:
    tr.set(at.line.result(RID, missing_id()), b"")


def notice_without_deadline(at: Place, tr: Any) -> None:
    tr.set(at.line.notice(RID), notice_value(Notice(2**60, 0)))


def classed(at: Place) -> bytes:
    record = at.record(BURIED)
    assert record.error is not None
    return at.keys.classed_at(record.error, at.tasks._shape.discipline.place(record))


TASKS: dict[str, tuple[Plant, Flaw, str]] = {
    "record of a taken task": (unreadable(TAKEN), Flaw.RECORD, MEND),
    "record of a ready task": (unreadable(READY), Flaw.RECORD, MEND),
    "record of a buried task": (unreadable(BURIED), Flaw.RECORD, MEND),
    "no entry, ready": (without_entry(READY), Flaw.STATE, MEND),
    "no entry, taken": (without_entry(TAKEN), Flaw.STATE, MEND),
    "no entry, delayed": (without_entry(DELAYED), Flaw.STATE, MEND),
    "no entry, buried": (without_entry(BURIED), Flaw.STATE, MEND),
    "no record, ready": (without_record(READY), Flaw.STRAY, MEND),
    "no record, taken": (without_record(TAKEN), Flaw.STRAY, MEND),
    "two states": (in_two_states, Flaw.STRAY, MEND),
    "another copy": (other_copy, Flaw.COPY, MEND),
    "no timer": (without_timer, Flaw.TIMER, MEND),
    "two timers": (with_another_timer, Flaw.TIMER, MEND),
    "a lost piece": (without_a_piece, Flaw.PAYLOAD, "fdbqueue delete tasks"),
    "a stray piece": (lambda at, tr: tr.set(at.keys.payload(missing_id(), 0), b"x"), Flaw.PAYLOAD, MEND),
    "a piece of a small payload": (
        lambda at, tr: tr.set(at.keys.payload(at.record(READY).id, 0), b"x"),
        Flaw.PAYLOAD,
        MEND,
    ),
    "a stray failure": (lambda at, tr: tr.set(at.keys.failure(missing_id(), 0), b"x"), Flaw.STRAY, MEND),
    "a damaged failure": (
        lambda at, tr: tr.set(at.keys.failure(at.record(READY).id, 0), b"x"),
        Flaw.VALUE,
        MEND,
    ),
    "a counter too large": (counted(ready=3), Flaw.COUNTER, MEND),
    "a counter too small": (counted(buried=-1), Flaw.COUNTER, MEND),
    "a counter below zero": (counted(delayed=-9), Flaw.COUNTER, MEND),
    "no counters": (lambda at, tr: tr.clear(at.keys.counters), Flaw.COUNTER, MEND),
    "no such session": (held_by_no_session, Flaw.SESSION, "fdbqueue release-all tasks"),
    "a member of no owner": (
        lambda at, tr: tr.set(layer.pack((14, "me", OTHER), prefix=at.keys.prefix), b""),
        Flaw.STRAY,
        MEND,
    ),
    "a result without notice": (result_without_notice, Flaw.LINE, MEND),
    "a notice without deadline": (notice_without_deadline, Flaw.LINE, MEND),
    "a deadline without notice": (
        lambda at, tr: tr.set(at.line.due_key(Due(2**60, RID)), b""),
        Flaw.LINE,
        "The next look at the line",
    ),
    "a renewal without request": (
        lambda at, tr: tr.set(at.line.renewal(Ticket(STAMP, RID, 1)), renewal_value(2**60)),
        Flaw.STRAY,
        MEND,
    ),
    "a part without entry": (
        lambda at, tr: tr.set(at.tasks._shape.aside.part(bytes(16)) + bytes(4), b"x"),
        Flaw.SET_ASIDE,
        MEND,
    ),
    "values set aside": (
        lambda at, tr: tr.add(at.tasks._shape.aside.count_key, b"\x02" + bytes(7)),
        Flaw.COUNTER,
        MEND,
    ),
    "an unknown column": (
        lambda at, tr: tr.set(layer.pack((99,), prefix=at.keys.prefix), b""),
        Flaw.UNKNOWN,
        "Another program",
    ),
    "no entry of its class": (
        lambda at, tr: tr.clear(classed(at)),
        Flaw.STATE,
        MEND,
    ),
    "a stray entry of a class": (
        lambda at, tr: tr.set(at.keys.classed_at("Odd", bytes(4) + missing_id()), b""),
        Flaw.STRAY,
        MEND,
    ),
    "a counter of a class": (
        lambda at, tr: tr.add(at.keys.class_count("Odd"), b"\x01" + bytes(7)),
        Flaw.COUNTER,
        MEND,
    ),
    "short counters": (lambda at, tr: tr.set(at.keys.counters, b"\x01"), Flaw.COUNTER, MEND),
    "long counters": (lambda at, tr: tr.set(at.keys.counters, b"\x01" * 199), Flaw.COUNTER, MEND),
    "a short counter of a class": (
        lambda at, tr: tr.set(at.keys.class_count("Odd"), b"\x05"),
        Flaw.COUNTER,
        MEND,
    ),
    "a class with no task": (
        lambda at, tr: tr.set(at.keys.class_count("None"), bytes(8)),
        Flaw.COUNTER,
        MEND,
    ),
    "a damaged entry of a value set aside": (
        lambda at, tr: tr.set(at.tasks._shape.aside.entry(bytes(16)), b"x"),
        Flaw.SET_ASIDE,
        "fdbqueue aside tasks --remove " + "0" * 26,
    ),
    "a damaged redrive": (lambda at, tr: tr.set(at.keys.redrive, b"\xff"), Flaw.VALUE, MEND),
    "a long id": (
        lambda at, tr: tr.set(at.keys.delayed_at(bytes(21)), b""),
        Flaw.UNKNOWN,
        "Another program",
    ),
    "a short id": (lambda at, tr: tr.set(at.keys.task(b"short"), b""), Flaw.UNKNOWN, "Another program"),
}


def ended(at: Place) -> tuple[bytes, int]:
    """The id and the time of an ended task."""
    row = at.db.get_range(at.keys.ended_times.start, at.keys.ended_times.stop)[0]
    return id_in(row.key), at.keys.ended_time(row.key)


ENDED: dict[str, tuple[Plant, Flaw, str]] = {
    "an unreadable entry": (lambda at, tr: tr.set(at.keys.ended(ended(at)[0]), b"x"), Flaw.VALUE, MEND),
    "no entry by time": (
        lambda at, tr: tr.clear(at.keys.ended_at(*reversed(ended(at)))),
        Flaw.STATE,
        MEND,
    ),
    "a stray entry by time": (
        lambda at, tr: tr.set(at.keys.ended_at(1, missing_id()), b""),
        Flaw.STRAY,
        MEND,
    ),
    "an entry at another time": (
        lambda at, tr: tr.set(at.keys.ended_at(ended(at)[1] + 1, ended(at)[0]), b""),
        Flaw.STRAY,
        MEND,
    ),
    "a stray entry by key": (
        lambda at, tr: tr.set(at.keys.ended_of(KEY, 1, missing_id()), b""),
        Flaw.STRAY,
        MEND,
    ),
    "their number": (lambda at, tr: tr.add(at.keys.ended_count, b"\x03" + bytes(7)), Flaw.COUNTER, MEND),
}

RESULTS: dict[str, tuple[Plant, Flaw, str]] = {
    "an unreadable result": (lambda at, tr: tr.set(result(at, 0)[0], b"x"), Flaw.VALUE, MEND),
    "no time of its end": (lambda at, tr: tr.clear(result(at, 0)[2]), Flaw.TIMER, MEND),
    "a stray time": (lambda at, tr: tr.set(at.shared.result_at(1, missing_id()), b""), Flaw.STRAY, MEND),
    "another time": (lambda at, tr: tr.set(at.shared.result_at(1, result(at, 0)[1]), b""), Flaw.STRAY, MEND),
    "a stray piece": (lambda at, tr: tr.set(at.shared.result_piece(missing_id(), 0), b"x"), Flaw.STRAY, MEND),
    "a missing piece": (
        lambda at, tr: tr.clear(at.shared.result_piece(result(at, 1)[1], 1)),
        Flaw.PAYLOAD,
        MEND,
    ),
}


def result(at: Place, number: int) -> tuple[bytes, bytes, bytes]:
    """The key of a result, its task, and the key of its time: of a small one, then of a large one."""
    row = at.db.get_range(at.shared.result_times.start, at.shared.result_times.stop)[number]
    return at.shared.result(id_in(row.key)), id_in(row.key), bytes(row.key)


KEYED: dict[str, tuple[Plant, Flaw, str]] = {
    "a damaged state": (lambda at, tr: tr.set(state_key(at), b"no state"), Flaw.KEY_STATE, MEND),
    "no state": (lambda at, tr: tr.clear(state_key(at)), Flaw.KEY_STATE, MEND),
    "no entry, ready": (without_entry(READY), Flaw.STATE, MEND),
    "no record, ready": (without_record(READY), Flaw.STRAY, MEND),
    "two pointers": (
        lambda at, tr: tr.set(
            at.keys.ready_at(bytes(4) + at.record(READY).id), record_to_bytes(at.record(READY))
        ),
        Flaw.STRAY,
        MEND,
    ),
    "a counter of a key": (
        lambda at, tr: tr.add(at.counts.counts_key(slug_of(KEY)), packed(LIVE_NAMES, {"delayed": 1})),
        Flaw.KEY_COUNTER,
        MEND,
    ),
    "no counter of a key": (
        lambda at, tr: tr.clear(at.counts.counts_key(slug_of(KEY))),
        Flaw.KEY_COUNTER,
        MEND,
    ),
    "a short counter of a key": (
        lambda at, tr: tr.set(at.counts.counts_key(slug_of(KEY)), b"\x01"),
        Flaw.KEY_COUNTER,
        MEND,
    ),
    "counters of a key without tasks": (
        lambda at, tr: tr.set(at.counts.counts_key(slug_of(key_bytes("other"))), bytes(32)),
        Flaw.KEY_COUNTER,
        MEND,
    ),
    "a level": (lambda at, tr: tr.set(at.counts.level_key(slug_of(KEY)), b"\x09"), Flaw.KEY_COUNTER, MEND),
    "an entry of a level": (
        lambda at, tr: tr.set(at.counts.busy_key(9, slug_of(KEY)), b""),
        Flaw.KEY_COUNTER,
        MEND,
    ),
}

ROOT: dict[str, tuple[Plant, Flaw, str]] = {
    "a damaged definition": (
        lambda at, tr: tr.set(at.root_keys.definition("elements"), b"no definition"),
        Flaw.DEFINITION,
        "fdbqueue drop elements",
    ),
    "a damaged last id": (lambda at, tr: tr.set(at.root_keys.last_id, b"x"), Flaw.DEFINITION, MEND),
    "a small last id": (lambda at, tr: tr.set(at.root_keys.last_id, bytes(8)), Flaw.DEFINITION, MEND),
    "a dropped queue": (
        lambda at, tr: tr.set(at.root_keys.contents(77).key() + b"\x15\x01left", b""),
        Flaw.ORPHAN,
        MEND,
    ),
    "progress of a dropped queue": (
        lambda at, tr: tr.set(at.root_keys.progress(77, "label"), b""),
        Flaw.ORPHAN,
        MEND,
    ),
    "a damaged receipt": (lambda at, tr: tr.set(at.root_keys.receipt(b"p", 1), b"x"), Flaw.VALUE, MEND),
    "no heartbeat": (lambda at, tr: tr.clear(at.root_keys.heartbeat(at.session.id)), Flaw.SESSION, MEND),
    "a heartbeat of no session": (
        lambda at, tr: tr.set(at.root_keys.heartbeat(OTHER), layer.pack((1,))),
        Flaw.STRAY,
        MEND,
    ),
    "a presence of no session": (
        lambda at, tr: tr.set(at.root_keys.presence(OTHER), b"{}"),
        Flaw.STRAY,
        MEND,
    ),
    "a name of no session": (lambda at, tr: tr.set(at.root_keys.session_named("x"), OTHER), Flaw.STRAY, MEND),
    "a run without workers": (lambda at, tr: tr.set(at.root_keys.run(OTHER), bytes(40)), Flaw.STRAY, MEND),
    "a member that has ended": (
        lambda at, tr: tr.set(at.root_keys.membership(OTHER), b"a run"),
        Flaw.STRAY,
        MEND,
    ),
    "a foreign key": (lambda at, tr: tr.set(at.root.pack((99, "x")), b""), Flaw.UNKNOWN, "Another program"),
    "foreign contents": (lambda at, tr: tr.set(at.root.pack((2, "x")), b""), Flaw.UNKNOWN, "Another program"),
    "elements": (lambda at, tr: tr.add(at.element_keys.count, b"\x05" + bytes(7)), Flaw.COUNTER, MEND),
    "a lock of no element": (
        lambda at, tr: tr.set(at.element_keys.lock("12345678/12345678"), bytes(20)),
        Flaw.STRAY,
        MEND,
    ),
}


def state_key(at: Place) -> bytes:
    return at.tasks._shape.discipline.state_key(KEY)


@pytest.fixture
def found_and_cured() -> Iterator[Callable[..., None]]:
    """In memory, as there are many; one test below runs on every engine."""
    with fdbqueue.open("memory:") as db:
        yield lambda kind, *corruption: check(db, place(db, TEST_ROOT, kind), *corruption)


def check(db: Database, at: Place, plant: Plant, flaw: Flaw, cure: str) -> None:
    """Plant a corruption, and check its finding. Mend it, if that is its cure."""
    assert at.verify().findings == ()
    run(db, lambda tr: plant(at, tr))
    found = [finding for finding in at.verify().findings if finding.flaw == flaw]
    assert found
    assert cure in found[0].cure
    assert found[0].text.endswith(".")
    if cure == MEND:
        at.verify(mend=True)
        at.verify(mend=True)  # the counters, once the entries are right
        assert at.verify().findings == ()


@pytest.mark.parametrize("name", TASKS)
def test_a_corrupt_task_queue_is_told_and_cured(name: str, found_and_cured: Callable[..., None]) -> None:
    found_and_cured("fifottl", *TASKS[name])


@pytest.mark.parametrize("name", KEYED)
@pytest.mark.parametrize("kind", ["utubettl", "fair"])
def test_a_corrupt_task_key_is_told_and_cured(
    name: str, kind: str, found_and_cured: Callable[..., None]
) -> None:
    found_and_cured(kind, *KEYED[name])


def pointer_of_a_closed_key(at: Place, tr: Any) -> None:
    """A task of the key is taken, so no other one may be taken."""
    fifo = at.tasks._shape.discipline.fifo(KEY)
    first = at.db.get_range(fifo.start, fifo.stop, limit=1)[0]
    place, head = bytes(4) + id_in(first.key), first.key[len(fifo.start) :]
    state = replace(state_of(tr.get(state_key(at)).value), pointer=place, head=head)
    tr.set(state_key(at), msgspec.msgpack.encode(state))
    tr.set(at.keys.ready_at(place), first.value)


def test_a_pointer_of_a_closed_key_is_told_and_cured(found_and_cured: Callable[..., None]) -> None:
    found_and_cured("utubettl", pointer_of_a_closed_key, Flaw.KEY_STATE, MEND)


@pytest.mark.parametrize("name", ENDED)
def test_a_corrupt_ended_task_is_told_and_cured(name: str, found_and_cured: Callable[..., None]) -> None:
    found_and_cured("fifottl", *ENDED[name])


@pytest.mark.parametrize("name", RESULTS)
def test_a_corrupt_result_is_told_and_cured(name: str, found_and_cured: Callable[..., None]) -> None:
    found_and_cured("fifottl", *RESULTS[name])


@pytest.mark.parametrize("name", ROOT)
def test_a_corrupt_root_is_told_and_cured(name: str, found_and_cured: Callable[..., None]) -> None:
    found_and_cured("fifottl", *ROOT[name])


@pytest.mark.parametrize("names", [("no entry, taken", "two timers", "a counter too large", "a stray piece")])
def test_corruptions_are_told_together(db: Database, space: Subspace, names: tuple[str, ...]) -> None:
    at = place(db, space)
    for name in names:
        run(db, lambda tr, name=name: TASKS[name][0](at, tr))
    assert {TASKS[name][1] for name in names} <= {finding.flaw for finding in at.verify(mend=True).findings}
    assert at.verify().findings == ()
    at.session.end()


def test_a_finding_names_the_task(db: Database, space: Subspace) -> None:
    """An operator needs its id, and the key in the bytes that are stored."""
    at = place(db, space)
    id_ = at.record(TAKEN).id
    run(db, lambda tr: tr.set(at.keys.task(id_), b"no record"))
    (finding,) = at.verify().findings
    assert finding.queue == "tasks"
    assert id_text(id_) in finding.text
    assert at.keys.prefix + finding.key == at.keys.task(id_)
    at.session.end()


def test_a_task_that_a_request_may_still_collect_is_no_finding(
    db: Database, space: Subspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of an ended session is served until it is overdue. Rows behind the bound may have it."""
    at = place(db, space)
    run(db, lambda tr: held_by_no_session(at, tr))
    assert Flaw.SESSION in {finding.flaw for finding in at.verify().findings}
    with monkeypatch.context() as patch:
        patch.setattr(limits, "VERIFIED_ROWS_MAX", 1)
        assert Flaw.SESSION not in {finding.flaw for finding in at.verify().findings}
    run(db, lambda tr: tr.set(at.line.result(RID, at.record(TAKEN).id), b""))
    assert Flaw.SESSION not in {finding.flaw for finding in at.verify().findings}
    at.session.end()


def test_the_keys_of_a_queue_with_a_definition_stay(db: Database, space: Subspace) -> None:
    """A mending has found its id without a definition, which has been written since."""
    at = place(db, space)
    registry = Registry(space)
    id_ = registry.find(db, "tasks").id
    run(db, lambda tr: orphans._clear(registry, id_, tr))
    assert at.verify().findings == ()
    assert at.record(READY)
    at.session.end()


def test_two_mendings_of_a_counter_conflict(db: Database, space: Subspace) -> None:
    """Each adds the difference that it has seen."""
    at = place(db, space)
    run(db, lambda tr: counted(ready=3)(at, tr))
    checks = subject_of(at.tasks).checks
    assert isinstance(checks, TaskChecks)
    ready = next(iter(counts_of_tasks(checks, registered=True)))
    first, second = db.create_transaction(), db.create_transaction()
    for tr in (first, second):
        ready._mend(tr)
    first.commit().wait()
    with pytest.raises(engine_errors()):
        second.commit().wait()
    assert at.verify().findings == ()
    at.session.end()


@pytest.mark.parametrize("plant", [KEYED["a short counter of a key"][0], KEYED["a counter of a key"][0]])
def test_one_mending_of_a_task_key_is_enough(plant: Plant) -> None:
    """Its state is made from its counter, so it is made again behind the counter."""
    with fdbqueue.open("memory:") as db:
        at = place(db, TEST_ROOT, "utubettl")
        run(db, lambda tr: plant(at, tr))
        assert at.verify(mend=True).sound
        assert at.verify().findings == ()


def test_a_queue_is_created_after_the_last_id_was_mended(db: Database, space: Subspace) -> None:
    """Its id is none that a queue has, nor one with contents."""
    at = place(db, space)
    run(db, lambda tr: tr.set(at.root_keys.last_id, b"x"))
    run(db, lambda tr: tr.set(at.root_keys.contents(77).key() + b"\x15\x01left", b""))
    at.verify(mend=True)
    assert TaskQueue.create(db, "new", "fifo", root=space).put(db, 1).id
    assert at.verify().findings == ()
    at.session.end()


@pytest.mark.parametrize(
    ("queue", "arguments", "words"),
    [
        ("q", ["7"], ["q", "7"]),
        ("a b", ["--mend"], ["a b", "--mend"]),
        ("-q", ["7"], ["--", "-q", "7"]),
        ("-q", ["--remove", "7"], ["--remove", "7", "--", "-q"]),
        (None, ["--mend"], ["--mend"]),
    ],
)
def test_a_cure_can_be_typed(queue: str | None, arguments: list[str], words: list[str]) -> None:
    assert shlex.split(command("verb", queue, *arguments)) == ["fdbqueue", "verb", *words]


def test_control_characters_of_a_name_are_escaped_in_a_cure() -> None:
    """A terminal would obey them, or leave them out."""
    assert command("pause", "a\x1b[31m'\n") == r"fdbqueue pause $'a\x1b[31m\x27\x0a'"
