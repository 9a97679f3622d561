"""Rare ways to a partition: old plans, damage, restored data. No task is lost to its queue on them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from fdbqueue import DeadLetters, Failure, Session, TaskState, verify
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.line.decision import Notice, Ticket
from fdbqueue.core.partitions import home_of
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.tasks import verbs
from fdbqueue.tasks.calls import Put, calls_of
from fdbqueue.tasks.failures import moved_bytes
from fdbqueue.tasks.feature import Answers
from fdbqueue.tasks.group_settling import with_groups
from fdbqueue.tasks.options import Draft, key_bytes
from fdbqueue.tasks.repartition import Settling
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.records import LIVE_NAMES, Member, id_bytes, packed, record_of
from tests.tasks.partitions import MakeParted, PartitionsBench, moving_key
from tests.tasks.support import SetLimits
from tests.tasks.test_callbacks import Told

KEY = moving_key(1, 4)
LARGE = "x" * 50_000
"""A payload beside its record."""


def is_sound(b: PartitionsBench) -> bool:
    return verify(b.db, "bench", root=b.root).findings == ()


def test_a_sweep_by_an_old_plan_follows_the_present_one(parted: MakeParted) -> None:
    b = parted("utubettl")
    other = b.other_process()
    b.put("later", key=KEY, delay=10)
    b.repartition(4)
    b.settle()
    b.put("first", key=KEY)
    assert b.take().data == "first"
    b.clock.advance(11)
    run(other._database, calls_of(other._database, other._shape).parts.tidy)
    assert (b.take(), b.counts("ready", "taken")) == (None, (1, 1))
    assert is_sound(b)


def serve_dead_request(b: PartitionsBench, at_home: bool = False) -> None:
    """Let the first task lie ready for a minute, in the line of all partitions or of its own."""
    calls = calls_of(b.db, b.queue._shape)
    params = calls._new_params(b.session)
    source = calls.parts.part(*b.places().values()) if at_home else calls.parts.wide

    def serve(tr: Any) -> None:
        source.guard(tr)()
        deliveries = source.deliver(tr, [*source.available(tr, 1, b.clock.now_us())], params)
        notice = Notice(b.clock.now_us() + 60_000_000, 1)
        source.line.results.leave(
            tr, Ticket(b"", b"r" * limits.RANDOM_SUFFIX_BYTES, 1, params), deliveries, notice
        )

    run(b.db, serve)


def test_a_partition_stays_while_a_task_of_it_lies_ready(parted: MakeParted) -> None:
    """The return of the task counts in that partition, which would have new counters by then."""
    b = parted("fifo", partitions=2)
    while (id_ := b.put("lost")) and b.places()[id_] == 0:
        b.queue.delete(b.db, id_)
    serve_dead_request(b)
    b.queue.delete(b.db, id_)
    b.repartition(1)
    b.settle()
    assert b.plan().high == 2
    b.repartition(2)
    b.clock.advance(61)
    b.settle()
    assert b.counts("take", "bury", "total") == (0, 0, 0)
    assert is_sound(b)


@pytest.mark.parametrize("at_home", [False, True], ids=["wide", "home"])
@pytest.mark.parametrize("notice_bytes", [limits.NOTICE_BYTES_MAX, 0], ids=["in", "beside"])
def test_a_death_fails_no_attempt_that_lies_ready_for_a_call(
    parted: MakeParted, set_limits: SetLimits, notice_bytes: int, at_home: bool
) -> None:
    """No caller has received the task. Its lease lies in a notice, or beside one."""
    set_limits(NOTICE_BYTES_MAX=notice_bytes)
    b = parted("fifo", partitions=2)
    b.session = Session(b.db, ttr=5, root=b.root)
    id_ = b.put("x")
    serve_dead_request(b, at_home)
    assert b.state(id_) == "t"
    keeper_of(b.db, b.queue._shape.root).forget(b.session)
    b.clock.advance(6)
    b.settle()
    task = b.queue.peek(b.db, id_)
    assert (task.state, task.failures, task.orphaned) == ("r", 0, 0)


@pytest.mark.commits_by_hand
def test_a_withdrawal_by_an_old_plan_sets_the_flag(parted: MakeParted) -> None:
    b = parted()
    other = b.other_process()
    calls, line = calls_of(other._database, other._shape), calls_of(b.db, b.queue._shape).source.line
    params = calls._new_params(b.session)
    run(b.db, lambda tr: line.register(tr, b"r" * 8, 1, params, b.clock.now_us()))
    ticket = Ticket(run(b.db, lambda tr: line.find(tr, b"r" * 8)).stamp, b"r" * 8, 1, params)
    b.repartition(4)
    while (id_ := b.put("x")) and b.places()[id_]:
        b.queue.delete(b.db, id_)

    def serve(tr: Any) -> None:
        line.source.guard(tr)()
        [*offers] = line.source.available(tr, 1, b.clock.now_us())
        tr.clear(line.keys.request(ticket))
        deliveries = line.source.deliver(tr, offers, params)
        line.results.leave(tr, ticket, deliveries, Notice(b.clock.now_us() + 60_000_000, 1))

    run(b.db, serve)
    assert b.take() is None  # and clears the flag
    run(other._database, lambda tr: calls.source.line.withdraw(tr, ticket))
    assert is_sound(b)
    assert b.take().data == "x"


def test_a_task_without_its_payload_stops_no_other(parted: MakeParted) -> None:
    """Its key has moved, so it joins another partition, with all that is left of it."""
    b = parted("utubettl")
    id_ = b.put(LARGE, key=KEY, delay=5)
    b.put("sound", key=KEY, delay=5)
    del b.db[b.queue._shape.keys.payload(id_bytes(id_), 0)]
    b.repartition(4)
    b.settle()
    b.clock.advance(10)
    assert b.taken_data() == ["sound"]
    assert b.state(id_) == "!"


@pytest.mark.parametrize("size", [10, 50_000, 900_000])
def test_a_kick_into_another_partition_returns_the_data(parted: MakeParted, size: int) -> None:
    b = parted("utubettl")
    id_ = b.put("x" * size, key=KEY)
    b.queue.bury(b.db, id_, failure=Failure("ValueError", "no"))
    b.repartition(4)
    b.settle()
    letters = DeadLetters.open(b.db, "bench", root=b.root)
    assert letters.kick(b.db, id_).data == "x" * size
    assert b.take().data == "x" * size


def test_a_restored_repartition_takes_all_its_steps_again(parted: MakeParted) -> None:
    b = parted("utube")
    for number in range(2):
        b.put(number, key=KEY)
    b.repartition(4)
    b.put(2, key=KEY)
    backup = b.contents() | {key: b.db[key] for key in definition_keys(b)}
    while (task := b.take()) is not None:
        b.queue.ack(b.db, task)
    b.settle()
    assert not b.plan().before

    def restore(tr: Any) -> None:
        tr.clear_range_startswith(b.queue.contents.key())
        for key, value in backup.items():
            tr.set(key, value)

    run(b.db, restore)
    b.put("another commit", key="another")
    b.queue.partitions(b.db)
    b.settle()
    assert b.plan().before
    done = []
    while (task := b.take()) is not None:
        done.append(task.data)
        b.queue.ack(b.db, task)
    assert [data for data in done if data != "another commit"] == [0, 1, 2]
    assert is_sound(b)


def definition_keys(b: PartitionsBench) -> list[bytes]:
    shape = b.queue._shape
    return [shape.registry.keys.definition(shape.name)]


def test_an_excused_task_that_has_expired_holds_no_key(parted: MakeParted) -> None:
    """It was buried in the old partition, and is ready for a moment on the way to its end."""
    b = parted("utubettl", ttl=20, ttr=5)
    b.put("old", key=KEY)
    first = b.take()
    b.clock.advance(6)
    assert b.queue.exhaust(b.db, b.take(), 1)
    b.clock.advance(30)
    run(b.db, lambda tr: b.queue.repartition(tr, 4))
    settling = Settling(calls_of(b.db, b.queue._shape).parts, b.clock.monotonic)
    for _ in range(5):  # the passes over one old and four new partitions
        assert run(b.db, settling.step)
    assert b.queue.excuse(b.db, first)
    b.put("new", key=KEY)
    run(b.db, settling.step)  # the last one
    b.settle()
    assert b.take().data == "new"


def test_a_damaged_state_of_a_held_key_holds_no_longer(parted: MakeParted) -> None:
    b = parted("utube")
    b.put(0, key=KEY)
    first = b.take()
    b.repartition(4)
    for number in (1, 2):
        b.put(number, key=KEY)
    there = b.queue._shape.partition(home_of(key_bytes(KEY), 4)).discipline
    b.db[there.state_key(key_bytes(KEY))] = b"\xff\x01"
    b.queue.ack(b.db, first)
    b.settle()
    assert b.take().data == 1
    assert (b.take(), is_sound(b)) == (None, True)


@pytest.mark.commits_by_hand
def test_a_callback_hears_of_a_task_that_changes_its_partition(parted: MakeParted) -> None:
    b, told = parted("utubettl"), Told()
    b.put(LARGE, key=KEY, delay=5)
    b.repartition(4)
    b.settle()
    b.queue.on_task_change(told)
    b.clock.advance(6)
    b.settle()
    assert told.names(1) == ["delay"]
    assert told.events[0][0] == LARGE


@pytest.mark.parametrize("state", ["delayed", "buried"])
def test_large_tasks_join_other_partitions_one_by_one(parted: MakeParted, state: str) -> None:
    """All of them would not fit into one transaction."""
    b = parted("utubettl")
    ids = [b.put("x" * 900_000, key=KEY, delay=5 if state == "delayed" else 0) for _ in range(13)]
    if state == "buried":
        for id_ in ids:
            b.queue.bury(b.db, id_)
    b.repartition(4)
    b.settle()
    if state == "buried":
        assert b.queue.kick(b.db, 20) == 13
    b.clock.advance(6)
    for _ in range(2):
        b.settle()
    assert b.counts("ready", "delayed", "buried") == (13, 0, 0)
    assert b.take() is not None


def test_a_sweep_moves_large_tasks_out_of_one_partition(parted: MakeParted, set_limits: SetLimits) -> None:
    """The bytes of all partitions share the bound of a transaction."""
    b = parted("fifottl", partitions=4)
    for _ in range(4):
        b.put(LARGE, delay=5)
    assert {*b.places().values()} == {0, 1, 2, 3}
    b.repartition(1)
    b.clock.advance(6)
    set_limits(MOVED_BYTES_MAX=len(LARGE))
    run(b.db, calls_of(b.db, b.queue._shape).parts.tidy)
    assert b.counts("ready", "delayed") == (2, 2)
    b.settle()
    assert b.counts("ready", "delayed") == (4, 0)


def test_large_tasks_of_several_partitions_are_kicked_together(parted: MakeParted) -> None:
    """All of them would not fit into one transaction."""
    b = parted(partitions=16)
    for _ in range(16):
        b.queue.bury(b.db, b.put("x" * 900_000))
    b.repartition(1)
    assert b.queue.kick(b.db, 20) == 16
    assert b.counts("ready", "buried") == (16, 0)


def test_a_move_counts_the_bytes_of_failures(parted: MakeParted, set_limits: SetLimits) -> None:
    b = parted("utube")
    for _ in range(5):
        b.queue.bury(b.db, b.put("x", key=KEY), failure=Failure("E"))
    b.repartition(4)
    set_limits(MOVED_BYTES_MAX=34_000)  # a failure counts as 12,000, a record as 2,000
    letters, parts = DeadLetters.open(b.db, "bench", root=b.root), calls_of(b.db, b.queue._shape).parts
    kick = partial(parts.all_within, verb=partial(verbs.kick_in_all, count=5))
    assert (letters.kick_some(b.db)[0], run(b.db, kick)[0], b.queue.kick(b.db, 5)) == (2, 2, 1)
    assert [len(b.queue.failures(b.db, id_)) for id_ in b.places()] == [1] * 5


def test_a_move_counts_the_groups_of_a_task(parted: MakeParted) -> None:
    """Each has keys of its own, with the name of the queue."""
    b = parted("fifottl")
    record = record_of(bytes(b.db[b.queue._shape.keys.task(id_bytes(b.put("x")))]))
    members = (Member(b"one", 0), Member(b"two", 0))
    assert moved_bytes(with_groups(record, members)) - moved_bytes(record) > 2 * limits.MOVED_GROUP_BYTES


@pytest.mark.parametrize("part", ["steps", "failures before a kick"])
def test_a_move_counts_the_bytes_of_all_parts(parted: MakeParted, set_limits: SetLimits, part: str) -> None:
    b = parted("utube")
    letters, parts = DeadLetters.open(b.db, "bench", root=b.root), calls_of(b.db, b.queue._shape).parts
    for _ in range(4):
        b.put("x", key=KEY)
        task = b.take()
        if part == "steps":
            b.queue.step(b.db, task, "large", lambda: "x" * 12_000)
        else:
            b.queue.bury(b.db, task, failure=Failure("E"))
            letters.kick(b.db, task)
            task = b.take()
        b.queue.bury(b.db, task)
    b.repartition(4)
    set_limits(MOVED_BYTES_MAX=34_000)
    kick = partial(parts.all_within, verb=partial(verbs.kick_in_all, count=4))
    assert [run(b.db, kick)[0] for _ in range(2)] == [2, 2]


def test_a_task_that_expires_in_a_sweep_holds_no_key(parted: MakeParted) -> None:
    """A task of its key joins the new partition in the same sweep. Another key keeps the change open."""
    b = parted("utubettl", partitions=2)
    key = moving_key(2, 4)
    other = next(n for n in range(99) if n != key and home_of(key_bytes(n), 2) != home_of(key_bytes(n), 4))
    b.put("open", key=other)
    b.put("gone", key=key, delay=5, ttl=1)
    b.put("due", key=key, delay=5)
    assert b.take().data == "open"
    b.repartition(4)
    b.clock.advance(10)
    b.settle()
    assert b.taken_data() == ["due"]
    assert is_sound(b)


def test_a_take_in_a_transaction_sweeps_every_partition(parted: MakeParted) -> None:
    """Each but the last has one task, which has expired."""
    b = parted(partitions=32)
    for number in range(32):
        b.put(number, ttl=5)
    while (id_ := b.put("due", delay=5)) and b.places()[id_] < 31:
        b.queue.delete(b.db, id_)
    b.clock.advance(10)
    assert run(b.db, lambda tr: b.queue.take(tr, session=b.session)).data == "due"


def test_a_task_for_a_dead_request_comes_back_beside_a_backlog(parted: MakeParted) -> None:
    """It lies ready in the line of all partitions, where no take at a home passes."""
    b = parted("fifo", partitions=4)
    b.put("lost")
    serve_dead_request(b)
    b.clock.advance(61)
    b.put_each(range(40))
    b.settle()
    assert b.counts("ready", "taken") == (41, 0)


def test_a_damaged_counter_holds_a_repartition_until_mended(parted: MakeParted) -> None:
    b = parted("utube", partitions=1)
    b.put("old", key=KEY)
    counts = b.queue._shape.discipline.counts.counts_key(slug_of(key_bytes(KEY)))
    b.db.add(counts, packed(LIVE_NAMES, {"ready": 1}))
    b.repartition(4)
    b.put("new", key=KEY)
    b.queue.ack(b.db, b.take())
    b.settle()
    assert (b.repartition(4).is_finished, b.take()) == (False, None)
    assert verify(b.db, "bench", root=b.root, mend=True).findings
    b.settle()
    assert (b.repartition(4).is_finished, b.take().data) == (True, "new")
    assert is_sound(b)


def test_a_key_beyond_the_first_page_holds_a_repartition(parted: MakeParted, set_limits: SetLimits) -> None:
    """The walk over the task keys goes on behind a full page."""
    set_limits(KEYS_LOOKED_AT_MAX=1)
    b, stays, moves = parted("utube"), 1, 7
    assert [home_of(key_bytes(key), 4) for key in (stays, moves)] == [0, 2]
    for key in (stays, moves):
        b.put("old", key=key)
    taken = [b.take(), b.take()]
    b.repartition(4)
    b.put("new", key=moves)
    b.settle()
    assert (b.repartition(4).is_finished, b.take()) == (False, None)
    for task in taken:
        b.queue.ack(b.db, task)
    assert (b.repartition(4).is_finished, b.take().data) == (True, "new")


@pytest.mark.parametrize("given", ["a database", "a transaction"])
def test_a_put_after_a_task_that_it_moves_waits_for_it(parted: MakeParted, given: str) -> None:
    """The queue is full, so the put sweeps: a task expires, and the delay of the other one is over."""
    b = parted("fair", capacity=2)
    first = b.put("first", key=KEY, delay=5)
    b.put("old", key=KEY, ttl=5)
    b.repartition(4)
    b.clock.advance(6)

    put = partial(b.queue.put, data="second", key=KEY, after=first)
    assert (put(b.db) if given == "a database" else run(b.db, put)).state == TaskState.DELAYED

    assert b.places()[first] == home_of(key_bytes(KEY), 4)
    [taken] = b.queue.take_many(b.db, 9, session=b.session)
    assert taken.data == "first"
    b.queue.ack(b.db, taken)
    b.settle()
    assert b.taken_data() == ["second"]
    assert is_sound(b)


def test_a_put_after_a_task_that_expires_meanwhile_does_not_wait(
    parted: MakeParted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sweep, which makes room, is later than its look at the task."""
    b = parted("fair", capacity=1, partitions=2)
    first = b.put("first", key=KEY, ttl=1)
    ask = Put.ask

    def later(put: Put, drafts: Sequence[Draft]) -> Callable[[], Answers]:
        b.clock.advance(2)
        return ask(put, drafts)

    monkeypatch.setattr(Put, "ask", later)

    b.queue.put(b.db, "second", key=KEY, after=first)

    assert b.taken_data() == ["second"]
    assert is_sound(b)
