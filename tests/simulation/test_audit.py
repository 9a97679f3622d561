"""The auditor judges each commit. Its rules are tested on steps made by hand, and by planted bugs."""

from collections import Counter
from typing import Any

import pytest
from fdb import tuple as layer
from msgspec.structs import replace

from fdbqueue import ElementQueue, Queue, Subspace, TaskQueue
from fdbqueue.core.limits import RANDOM_SUFFIX_BYTES, RECEIPT_STALE_S
from fdbqueue.core.line.decision import Delivery, LineKeys
from fdbqueue.core.once import ATTEMPT
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.sessions.ending import RUN_ENDS
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.stored.records import COUNTER_NAMES, ID_BYTES, NEVER_US, Record, TaskKeys, packed
from fdbqueue.testing import Client, Simulation
from fdbqueue.testing.engine import NONE, STALE
from fdbqueue.testing.trace import Commit, Footprint, Operation, Trace, sound
from tests.system.audit.agreement import Receipts, Sessions, ends_counted, leases_ended
from tests.system.audit.line import Handed, LineStep, Liveness, Requests
from tests.system.audit.model import Mirror, Move, Step, TaskStep, Values
from tests.system.audit.rules import Ready, late_in
from tests.system.audit.tasks import Lives, Order, calls_counted, taken_in_a_pause

S = 1_000_000
NOW_US = 100 * S
ID = bytes(ID_BYTES)
READY = Record(ID, TaskState.READY, 0, NOW_US - S, NEVER_US, 10 * S, 0)
TAKEN = replace(
    READY,
    state=TaskState.TAKEN,
    attempts=1,
    until_us=NOW_US + 9 * S,
    session=b"s",
    token=b"t",
    taken_us=NOW_US - S,
)
DELAYED = replace(READY, state=TaskState.DELAYED, until_us=NOW_US + S)
BURIED = replace(READY, state=TaskState.BURIED, error="")
CANCELLED = replace(TAKEN, cancelled_us=NOW_US)


def step(before: Record | None, after: Record | None, **counted: int) -> TaskStep:
    commit = Commit(7, 6, "worker/thread", "worker", 1, "", NOW_US)
    tasks = {ID: after} if after is not None else {}
    return TaskStep(commit, Step(commit, {}), {ID: Move(before, after)}, tasks, Counter(counted))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, READY),
        (READY, TAKEN),
        (DELAYED, BURIED),
        (BURIED, replace(BURIED, payload=b"edited", size_bytes=6)),
        (TAKEN, replace(READY, attempts=1, failures=1)),
        (TAKEN, READY),
        (TAKEN, replace(TAKEN, until_us=NOW_US + 10 * S)),
        (TAKEN, replace(TAKEN, until_us=TAKEN.until_us + S, ttr_us=11 * S)),
        (TAKEN, replace(TAKEN, token=b"u", attempts=2, taken_us=NOW_US, until_us=NOW_US + 10 * S)),
        (TAKEN, CANCELLED),
        (CANCELLED, None),
    ],
)
def test_a_legal_step_of_a_task(before: Record | None, after: Record | None) -> None:
    assert list(Lives().judge(step(before, after))) == []


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (None, replace(READY, failures=1), "has failures that count"),
        (READY, replace(READY, pri=1), "had another pri"),
        (READY, replace(TAKEN, attempts=0), "has no attempt more"),
        (READY, replace(TAKEN, session=b""), "taken without a lease"),
        (READY, replace(TAKEN, until_us=NOW_US), "another length than its ttr"),
        (READY, replace(TAKEN, taken_us=NOW_US + S, until_us=NOW_US + 11 * S), "in the future"),
        (replace(READY, failures=2), READY, "had more failures"),
        (READY, replace(READY, failures=1, attempts=0), "failed more often than it was taken"),
        (DELAYED, READY, "was delayed until"),
        (TAKEN, replace(TAKEN, attempts=2), "under the same lease"),
        (replace(TAKEN, until_us=NOW_US - S), replace(TAKEN, until_us=NOW_US + 10 * S), "lease was over"),
        (CANCELLED, replace(READY, attempts=1), "was cancelled, and goes on"),
        (BURIED, replace(BURIED, error=None), "without a class of failure"),
        (BURIED, READY, "ready without a kick"),
        (replace(BURIED, orphaned=1, attempts=1), replace(READY, orphaned=1, attempts=1), "failures count"),
        (READY, replace(READY, expires_us=NOW_US), "another end of its ttl"),
        (TAKEN, replace(READY, attempts=1, failures=1, orphaned=1), "lost a lease that lasts until"),
        (
            replace(TAKEN, expires_us=2 * NOW_US),
            replace(DELAYED, attempts=1, expires_us=NOW_US),
            "lost a part",
        ),
        (
            replace(TAKEN, expires_us=2 * NOW_US),
            replace(DELAYED, attempts=1, expires_us=2 * NOW_US),
            "its ttl has not got",
        ),
        (
            replace(TAKEN, orphaned=1, attempts=2),
            replace(READY, orphaned=1, attempts=2, failures=1),
            "still count in a row",
        ),
    ],
)
def test_a_step_that_is_not_legal(before: Record | None, after: Record, told: str) -> None:
    assert told in "\n".join(Lives().judge(step(before, after)))


def test_an_ended_task_never_comes_back() -> None:
    lives = Lives()
    assert [*lives.judge(step(READY, None)), *lives.judge(step(None, READY))] != []


@pytest.mark.parametrize(
    ("before", "after", "counted"),
    [
        (None, READY, {"put": 1}),
        (None, None, {"put": 1, "ack": 1, "take": 1, "done": 1}),
        (READY, TAKEN, {"take": 1}),
        (TAKEN, READY, {"take": -1, "other": 1}),
        (TAKEN, replace(READY, attempts=1), {"release": 1}),
        (TAKEN, replace(READY, attempts=1), {"ttr": 1}),
        (DELAYED, READY, {"delay": 1}),
        (READY, BURIED, {"bury": 1}),
        (BURIED, None, {"delete": 1, "ttl": 1, "done": 1}),
        (READY, None, {"other": 1}),
    ],
)
def test_calls_that_are_the_steps(
    before: Record | None, after: Record | None, counted: dict[str, int]
) -> None:
    assert list(calls_counted(step(before, after, **counted), LineStep())) == []
    wrong = Counter(counted)
    wrong.update({"put": 1, "bury": 1} if before is None else {"bury": 1, "done": 1})
    assert list(calls_counted(step(before, after, **wrong), LineStep())) != []


def test_a_cancelled_task_that_its_call_never_got_counts_no_take() -> None:
    value = CANCELLED.session + CANCELLED.token + bytes(8)
    line = LineStep(collected=[Handed(b"", "worker", [Delivery(ID, value)], by_owner=True)])
    ended = step(CANCELLED, None, cancel=1, done=1)
    assert list(calls_counted(ended, line)) == ["-1 takes, and 0 are counted"]
    assert list(calls_counted(step(CANCELLED, None, cancel=1, done=1, take=-1), line)) == []


def test_the_ttr_of_a_session_never_falls() -> None:
    keys = Registry(DEFAULT_ROOT).keys
    short, long = (layer.pack((b"opener", "name", ttr_s * S)) for ttr_s in (5, 10))
    commit = Commit(7, 6, "worker/thread", "worker", 1, "", NOW_US)

    def judged(before: bytes, after: bytes) -> list[str]:
        changes = {keys.session(b"session"): Values(before, after)}
        return list(Sessions(keys, lambda _: False, Liveness()).judge(Step(commit, changes)))

    assert judged(short, long) == []
    assert len(judged(long, short)) == 1


@pytest.mark.parametrize(
    ("machine", "age_s", "judged"), [("a", 0, 0), ("b", 0, 1), ("b", RECEIPT_STALE_S, 0)]
)
def test_a_process_clears_its_own_receipts_and_old_ones(machine: str, age_s: float, judged: int) -> None:
    written = ATTEMPT.pack(NOW_US, 1)
    put = Commit(7, 6, "a/thread", "a", 1, "", NOW_US)
    clear = Commit(8, 7, f"{machine}/thread", machine, 1, "", NOW_US + round(age_s * S))
    receipts = Receipts()
    assert list(receipts.judge(Step(put, {b"slot": Values(None, written)}))) == []
    assert len(list(receipts.judge(Step(clear, {b"slot": Values(written, None)})))) == judged


@pytest.mark.parametrize(
    ("liveness", "judged"),
    [
        (Liveness(lambda: True), 1),
        (Liveness(lambda: True, lambda _: False), 0),
        (Liveness(lambda: False), 0),
    ],
)
def test_a_session_of_a_live_process_is_not_ended(liveness: Liveness, judged: int) -> None:
    keys = Registry(DEFAULT_ROOT).keys
    opened, died = (Commit(7, 6, name, name, 1, "", NOW_US) for name in ("a", "b"))
    record, beat = layer.pack((b"opener", None, S)), layer.pack((NOW_US,))
    sessions, session = Sessions(keys, lambda _: False, liveness), keys.session(b"session")
    heartbeat = keys.heartbeat(b"session")
    begin = {session: Values(None, record), heartbeat: Values(None, beat)}
    end = {session: Values(record, None), heartbeat: Values(beat, None)}
    assert list(sessions.judge(Step(opened, begin))) == []
    assert len(list(sessions.judge(Step(died, end)))) == judged


def told_of_nothing(*, taken_at: int | None, paused_at: int | None = None) -> list[str]:
    """A task is put at event 2. A take from event 4 to 8 finds nothing."""
    ready, trace = Ready(b"paused"), Trace()
    steps = [(2, Move(None, READY), {})]
    steps += [] if taken_at is None else [(taken_at, Move(READY, TAKEN), {})]
    steps += [] if paused_at is None else [(paused_at, None, {b"paused": Values(None, b"")})]
    for event, move, changes in steps:
        commit = Commit(event, event, "a/b", "a", 1, "", NOW_US, event=event)
        moves = {} if move is None else {ID: move}
        ready.follow(TaskStep(commit, Step(commit, changes), moves, {ID: READY}, Counter()))
    trace.operations = [Operation("c", "jobs", "take", None, 4, 1.0, ended=8, ended_s=2.0)]
    return list(ready.untrue_in(trace, "jobs"))


def test_a_take_gives_nothing_beside_a_ready_task() -> None:
    assert "was told of nothing" in "\n".join(told_of_nothing(taken_at=None))
    assert "was told of nothing" in "\n".join(told_of_nothing(taken_at=9))


def test_a_take_gives_nothing_while_a_task_is_gone_or_paused() -> None:
    assert told_of_nothing(taken_at=6) == told_of_nothing(taken_at=None, paused_at=3) == []


@pytest.mark.parametrize(
    ("pause", "after", "judged"),
    [
        (None, TAKEN, 1),
        (Values(None, b""), TAKEN, 0),  # paused by the transaction that has taken before
        (Values(b"", None), TAKEN, 0),  # resumed by it
        (None, BURIED, 0),
    ],
)
def test_no_task_is_taken_behind_a_pause(pause: Values | None, after: Record, judged: int) -> None:
    keys = TaskKeys(Subspace(("jobs",)))
    made = step(READY, after)
    changes = {} if pause is None else {keys.paused: pause}
    is_paused = pause is None or pause.after is not None
    rows = Mirror.holding({keys.paused: b""} if is_paused else {})
    taken = TaskStep(made.commit, Step(made.commit, changes), made.moves, made.after, made.calls)
    assert len(list(taken_in_a_pause(keys, taken, rows))) == judged


def test_a_lease_is_renewed_during_a_pause() -> None:
    keys = TaskKeys(Subspace(("jobs",)))
    renewed = step(TAKEN, replace(TAKEN, until_us=NOW_US + 10 * S))
    assert list(taken_in_a_pause(keys, renewed, Mirror.holding({keys.paused: b""}))) == []


def test_a_call_returns_at_its_timeout() -> None:
    trace = Trace()
    trace.operations = [
        Operation("c", "jobs", "take", None, 0, 1.0, ended=1, ended_s=ended_s, timeout_s=2.0)
        for ended_s in (2.0, 3.0, 3.5, 9.0)
    ]
    assert list(late_in(trace)) == ["c waited 6.0 s longer than its timeout of 2 s"]


@pytest.mark.parametrize(("conflicts", "judged"), [(5, 1), (6, 0)])
def test_a_call_may_be_late_by_the_pauses_of_its_retries(conflicts: int, judged: int) -> None:
    trace = Trace()
    trace.operations = [Operation("c", "jobs", "take", None, 0, 1.0, ended=1, ended_s=2.5, timeout_s=0.0)]
    trace.transactions = [
        Footprint(who, 1, at_s, outcome, 1, 1, 9)
        for who, at_s, outcome in (
            *[("c", 1.0 + number / 10, "refused: 1020") for number in range(conflicts)],
            *[("c", 0.9, "refused: 1020"), ("c", 2.6, "refused: 1020")],
            *[("other", 1.2, "refused: 1020"), ("c", 1.2, "committed")],
        )
    ]
    assert len(list(late_in(trace))) == judged


@pytest.mark.parametrize(("conflicts", "judged"), [(5, 1), (6, 0)])
def test_a_call_may_be_late_by_conflicts_without_a_commit(conflicts: int, judged: int) -> None:
    trace = Trace()
    trace.operations = [
        Operation("c", "jobs", "take", None, 1, 1.0, ended=conflicts + 2, ended_s=2.5, timeout_s=0.0)
    ]
    stale = (1.2, "c", STALE, (7,))
    trace.events = [stale, (1.2, "other", STALE, (7,)), *[stale] * conflicts, stale]
    assert len(list(late_in(trace))) == judged


@pytest.mark.parametrize(("errors", "judged"), [(24, 1), (25, 0)])
def test_a_call_may_be_late_by_retries_after_old_versions(errors: int, judged: int) -> None:
    trace = Trace()
    trace.operations = [
        Operation("c", "jobs", "take", None, 1, 1.0, ended=errors + 2, ended_s=2.5, timeout_s=0.0)
    ]
    error = (1.2, "c", "fault", ("future_version",))
    trace.events = [error, (1.2, "other", "fault", ("too_old",)), *[error] * errors, error]
    assert len(list(late_in(trace))) == judged


@pytest.mark.parametrize(
    ("done", "is_member", "judged"), [(1, True, 0), (2, True, 1), (0, True, 1), (0, False, 0)]
)
def test_a_run_counts_each_end_of_its_leases_once(done: int, is_member: bool, judged: int) -> None:
    keys = Registry(DEFAULT_ROOT).keys
    commit = Commit(7, 6, "worker/thread", "worker", 1, "", NOW_US)
    row = Values(None, packed(RUN_ENDS, {"done": done}))
    lease = replace(TAKEN, token=bytes(RANDOM_SUFFIX_BYTES) + b"run")
    mirror = Mirror.holding({keys.membership(b"s"): b"run"} if is_member else {})
    ended = leases_ended(step(lease, None), keys, mirror)
    assert len(list(ends_counted(keys, Step(commit, {keys.run(b"run"): row}), ended))) == judged


def overtaken(*, kept: frozenset[bytes]) -> list[str]:
    """Judge a take of the second task of a key; its commit has written the tasks in `kept` as they were."""
    second = replace(READY, id=b"\x01" * ID_BYTES)
    taken = replace(TAKEN, id=second.id)
    shape = shape_of(Registry(DEFAULT_ROOT), Definition("jobs", 0, "utube", {}))
    order, requests = Order(shape, registered=True), Requests(LineKeys(shape.keys.line), Liveness())
    puts = {ID: Move(None, READY), second.id: Move(None, second)}
    takes = {second.id: Move(second, taken)}
    put, take = (Commit(version, version - 1, "a/b", "a", 1, "", NOW_US) for version in (6, 7))
    steps = [
        TaskStep(put, Step(put, {}), puts, {ID: READY, second.id: second}, Counter()),
        TaskStep(take, Step(take, {}), takes, {ID: READY, second.id: taken}, Counter(), kept),
    ]
    return [text for each in steps for text in order.judge(each, LineStep(), requests)]


def test_a_take_overtakes_no_task_of_its_key() -> None:
    assert "of the same task key" in "\n".join(overtaken(kept=frozenset()))


def test_a_task_taken_and_given_back_is_not_overtaken() -> None:
    assert overtaken(kept=frozenset({ID})) == []


def test_the_auditor_judges_every_commit_of_a_run() -> None:
    """Keys that are written past the queues contradict them: a counter, and an item of a subspace."""
    plain = Queue(Subspace(("plain",)))

    def clumsy(client: Client) -> None:
        queue = TaskQueue.create(client.db, "jobs")
        queue.put(client.db, 1)
        client.db.add(queue.contents[9].key(), packed(COUNTER_NAMES, {"ready": -1}))
        queue.put(client.db, 2)
        plain.enqueue(client.db, 1)
        client.db[Subspace(("plain",))[2].key()] = bytes(8)

    simulation = Simulation(1, faults=NONE)
    simulation.client(clumsy, "clumsy")
    found = "\n".join(simulation.run([sound(plain)]).violations)
    assert "transaction" in found
    for told in ("jobs: The counter of ready tasks says 0", "The counter of items says 0"):
        assert told in found


@pytest.mark.parametrize("told", [True, False])
def test_a_lock_serves_another_process_that_it_was_handed_to(told: bool) -> None:
    elements, handed = ElementQueue(Subspace(("elements",)), {"body": "string"}), list[tuple[str, Any]]()

    def lock(client: Client) -> None:
        name = elements.add(client.db, {"body": "x"})
        token = elements.acquire(client.db, name)
        assert token is not None
        if told:
            client.hand_over(token, "heir")
        handed.append((name, token))

    def remove(client: Client) -> None:
        while not handed:
            client.runtime.sleep(0.01)
        [(name, token)] = handed
        elements.remove(client.db, name, token=token)

    simulation = Simulation(1, faults=NONE)
    simulation.client(lock, "owner")
    simulation.client(remove, "heir")
    found = simulation.run([sound(elements)]).violations
    assert [text for text in found if "is locked by owner, and removed by heir" in text] == list(found)
    assert bool(found) is not told


def test_a_run_of_the_auditor_is_silent_without_a_bug() -> None:
    plain = Queue(Subspace(("plain",)))

    def careful(client: Client) -> None:
        plain.enqueue_many(client.db, [1, 2])
        assert plain.dequeue(client.db) == 1

    simulation = Simulation(1, faults=NONE)
    simulation.client(careful, "careful")
    assert simulation.run([sound(plain)]).violations == ()
