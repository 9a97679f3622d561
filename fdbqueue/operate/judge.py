"""Consumers in other languages, judged on a database: they are killed, and stopped past their leases.

Each runs as a worker (docs/conformance.md). The database tells its work: it writes an effect with each ack,
and buried tasks and counters stay. It says when attempts begin and end. First its processes are alone: no
process of this library sweeps their queue, or ends their sessions.
"""

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from fdb.subspace_impl import Subspace
from msgspec import Struct

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run
from fdbqueue.core.open import open as open_database
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import Transaction, engine_errors
from fdbqueue.core.task import Failure, TaskState
from fdbqueue.fleet.outcomes import Backoff
from fdbqueue.operate.conformance import NoAnswer, Program, ProgramFailed, escaped
from fdbqueue.operate.verify.verify import verify
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import COUNTERS, Statistics, statistics_of

KINDS: Mapping[str, Mapping[str, Any]] = {"fifo": {}, "fifottl": {"ttr": 2.0}}
_REFUSED: Sequence[tuple[str, Mapping[str, Any]]] = (
    ("fifo", {"partitions": 2}),
    ("fifo", {"retain_s": 60}),
    ("fifottl", {"result_ttl": 60}),
    ("limfifottl", {"capacity": 9}),
    ("utube", {}),
)
PLACE = Subspace(("fdbqueue-conformance",))
_ATTEMPTS, _SESSION_S, _LONG_S, _PATIENCE_S, _SOON_S = 3, 2.0, 3.0, 30.0, 1.0
_DO = {"ack": 20, "fail": 4, "bury": 4, "release": 4}
_ENDS_ALONE = "all tasks end, without a process of this library"
_KILLED = "a killed process loses its task to another one"
_STOPPED = "a stopped process loses its task to another one"


class Row(NamedTuple):
    verdict: str
    kind: str
    promise: str
    seen: str


class Attempt(Struct):
    by: Program | None
    """None for this process."""
    at: int
    ended: int | None = None
    how: str = ""
    signalled: int = 0
    """The time at which its process was killed or stopped meanwhile."""


class Judge:
    """One queue, the processes at it, and all that they have said."""

    def __init__(self, url: str, database: Database, place: Subspace, kind: str, argv: Sequence[str]) -> None:
        self.url, self._database, self._kind, self._argv = url, database, kind, argv
        self._root, self._effects = place["queues"], place["effects"].key()
        self._runtime, self._ends = RealRuntime(), ExitStack()
        self._wanted: dict[int, str] = {}
        self._attempts: dict[tuple[int, int], Attempt] = {}
        self._twice: list[tuple[int, int]] = []
        self._running: list[Program] = []
        self.rows: list[Row] = []

    def _check(self, promise: str, kept: Any, seen: object = "") -> None:
        self.rows.append(Row("kept" if kept else "broken", self._kind, promise, str(seen)))

    def judged(self, steps: "Callable[[Judge], None]") -> list[Row]:
        """A program that fails breaks a promise. All that runs is killed."""
        with self._ends:
            try:
                steps(self)
            except (ProgramFailed, NoAnswer) as reason:
                self._check("it answers", False, reason)
        return self.rows

    # The queue. A handle sweeps for as long as its database is open, so each of them is closed at once.

    @contextmanager
    def _ours(self) -> Iterator[tuple[Database, TaskQueue]]:
        with open_database(self.url) as database:
            yield database, TaskQueue.open(database, self._kind, root=self._root)

    def _create(self, **options: Any) -> None:
        with open_database(self.url) as database:
            TaskQueue.create(database, self._kind, self._kind, root=self._root, **options)

    def _put(self, do: Mapping[str, int], s: float = 0, **options: Any) -> list[int]:
        first = len(self._wanted)
        self._wanted |= dict(enumerate((one for one in do for _ in range(do[one])), first))
        numbers = [*self._wanted][first:]
        with self._ours() as (database, queue):
            queue.put_many(database, [{"n": n, "do": self._wanted[n], "s": s} for n in numbers], **options)
        return numbers

    def _read(self, key: bytes) -> bytes:
        return run(self._database, lambda tr: tr.get(key).value) or b""

    def _statistics(self) -> Statistics:
        return statistics_of(self._read(self._root.pack((2, 1, COUNTERS))))

    def _done(self, n: int) -> int:
        return int.from_bytes(self._read(self._effects + n.to_bytes(4, "big")), "little")

    def _ended(self) -> bool:
        tasks = self._statistics()["tasks"]
        return tasks["total"] == tasks["buried"]

    def _keys(self, *under: int) -> list[tuple[bytes, bytes]]:
        keys = self._root.range(under)
        rows = run(self._database, lambda tr: tr.get_range(keys.start, keys.stop).to_list())
        return [(row.key, row.value) for row in rows]

    # The processes.

    def _start(self) -> bool:
        """False if it refuses the queue. Raises: ProgramFailed, NoAnswer; OSError."""
        program = self._ends.enter_context(Program(self._argv, _PATIENCE_S, self._runtime))
        cluster = self.url.removeprefix("fdb:").partition("?")[0] or None
        places = {"root": escaped(self._root.key()), "effects": escaped(self._effects)}
        told = {"url": self.url, "cluster": cluster, "queue": self._kind, "session_s": _SESSION_S, **places}
        self._running.append(program)
        return _line(program.answer(json.dumps(told).encode() + b"\n")).get("event") != "refused"

    def _end(self) -> list[int]:
        statuses = [program.ended() for program in self._running]
        self._hear()
        return statuses

    def _signal(self, program: Program, number: int) -> None:
        self._hear()
        for one in self._attempts.values():
            if one.by is program and one.ended is None:
                one.signalled = self._runtime.now_us()
        program.signal(number)

    def _hear(self) -> None:
        for program in self._running:
            for said in map(_line, program.said()):
                self._note(program, said)

    def _note(self, by: Program | None, said: Mapping[str, Any]) -> None:
        place = said.get("n", -1), said.get("attempt", 0)
        if said.get("event") == "took":
            self._twice += [place] if place in self._attempts else []
            self._attempts[place] = Attempt(by, said["at"])
        elif said.get("event") == "ended" and place in self._attempts:
            self._attempts[place].ended, self._attempts[place].how = said["at"], said["how"]

    def _until(self, seen: Callable[[], Any], patience_s: float | None = None) -> Any:
        """What `seen` returns, as soon as that is something; its last answer if the patience is over."""
        end = self._runtime.monotonic() + (_PATIENCE_S if patience_s is None else patience_s)
        while True:
            self._hear()
            if (found := seen()) or self._runtime.monotonic() >= end:
                return found
            self._runtime.sleep(0.02)

    def _taken(self, n: int) -> Attempt:
        """The first attempt of a task. Raises: ProgramFailed without one in time."""
        if not self._until(lambda: (n, 1) in self._attempts):
            raise ProgramFailed(f"it has not taken a task within {_PATIENCE_S:g} s")
        return self._attempts[n, 1]

    # The steps.

    def refuse(self, options: Mapping[str, Any]) -> None:
        self._create(**options)
        self._put({"ack": 1})
        before = self._keys()
        kept = not self._start() and self._end() == [0] and self._keys() == before
        self._check(f"it refuses a queue with {', '.join(options) or 'task keys'}", kept)

    def work(self) -> None:
        self._create(attempts=_ATTEMPTS, backoff=Backoff(0.1, 1.0, 0.1), **KINDS[self._kind])
        self._start()
        self._start()
        self._put(_DO)
        self._check(_ENDS_ALONE, self._until(self._ended))
        # A busy machine may let a session die once.
        self._check("it holds a task for longer than its times", any(self._holds() for _ in range(3)))
        self._wake()
        self._stop()
        self._kill()
        self._pass_over()
        self._beside()
        statuses = self._end()
        left = any(statuses) or self._keys(4) or self._statistics()["tasks"]["taken"]
        self._check("told to end, it ends its session and its leases", not left, statuses)
        self._add_up()

    def _holds(self) -> bool:
        [n] = self._put({"ack": 1}, s=_LONG_S)
        return self._until(lambda: self._done(n)) and (n, 2) not in self._attempts

    def _wake(self) -> None:
        self._until(bool, _SOON_S)
        _, seen_s, _ = sorted(self._woken_s() for _ in range(3))  # a busy machine may be late once
        self._check("a put wakes it", seen_s < _SOON_S, f"after {seen_s} s")
        with self._ours() as (database, queue):
            queue.pause(database)
        [n] = self._put({"ack": 1})
        self._until(bool, _SOON_S)
        self._check("it takes nothing from a paused queue", (n, 1) not in self._attempts)
        with self._ours() as (database, queue):
            queue.resume(database)
        self._taken(n)

    def _woken_s(self) -> float:
        at, [n] = self._runtime.now_us(), self._put({"ack": 1})
        return (self._taken(n).at - at) / 1_000_000

    def _stop(self) -> None:
        [n] = self._put({"ack": 1}, s=_LONG_S)
        one = self._taken(n)
        assert one.by is not None  # this process takes nothing yet
        self._freeze(one.by)
        self._check(_STOPPED, self._until(lambda: self._done(n)))
        one.by.signal(signal.SIGCONT)
        self._until(lambda: one.how)
        self._check("it finds its lease lost, and writes nothing", one.how == "lost", one.how)

    def _freeze(self, program: Program) -> None:
        """Stop it. In a directory, a process that is stopped in a commit would hold up all others."""
        while True:
            self._signal(program, signal.SIGSTOP)
            try:
                return run(self._database, lambda tr: tr.set(self._effects, b""), timeout_s=0.5)
            except engine_errors():
                program.signal(signal.SIGCONT)

    def _kill(self) -> None:
        [n] = self._put({"ack": 1}, s=60)
        one = self._taken(n)
        assert one.by is not None  # as above
        self._signal(one.by, signal.SIGKILL)
        self._running.remove(one.by)
        self._check(_KILLED, self._until(lambda: (n, 2) in self._attempts))
        self._start()

    def _pass_over(self) -> None:
        [left], behind = self._put({"left": 1}, result_ttl=60), self._put({"ack": 3})
        taken = self._until(lambda: all(map(self._done, behind)))
        kept = taken and (left, 1) not in self._attempts
        self._check("it leaves a task that is not plain, and takes those behind", kept)
        with self._ours() as (database, queue):
            for task in queue.tasks(database, TaskState.READY, limits.BATCH_ITEMS_MAX):
                queue.delete(database, task.id)

    def _beside(self) -> None:
        with self._ours() as (database, queue):
            self._put(_DO)
            self._until(lambda: self._work(database, queue))
        ours = sum(one.by is None for one in self._attempts.values())
        self._check("it works beside this library", self._ended() and ours, f"{ours} takes of ours")

    def _work(self, database: Database, queue: TaskQueue) -> bool:
        """Take a task in this process, and end it as the page tells. True if all have ended."""
        task = queue.take(database, 0.1)
        if task is None:
            return self._ended()
        n, do, failure = task.data["n"], task.data["do"], Failure("Planned")
        one = self._attempts[n, task.attempts] = Attempt(None, self._runtime.now_us())
        if do == "bury":
            queue.bury(database, task, failure=failure)
        elif do == "fail" or (do == "release" and task.attempts == 1):
            queue.release(database, task, failure=failure if do == "fail" else None)
        else:
            run(database, partial(self._ack, queue, task, n))
        one.ended, one.how = one.at, do
        return False

    def _ack(self, queue: TaskQueue, task: Any, n: int, tr: Transaction) -> None:
        queue.ack(tr, task)
        tr.add(self._effects + n.to_bytes(4, "big"), (1).to_bytes(8, "little"))

    # At the end.

    def _add_up(self) -> None:
        done = {n: self._done(n) for n in self._wanted}
        wrong = {n: done[n] for n, do in self._wanted.items() if done[n] != (do in ("ack", "release"))}
        self._check("each task has its effect once", not wrong, wrong or f"{len(done)} tasks")
        with self._ours() as (database, queue):
            page = queue.tasks(database, TaskState.BURIED, limits.BATCH_ITEMS_MAX)
        found = {task.data["n"]: (task.failures, task.attempts) for task in page}
        counts = {"fail": (_ATTEMPTS, _ATTEMPTS), "bury": (1, 1)}
        wanted = {n: counts[do] for n, do in self._wanted.items() if do in counts}
        self._check("failures and attempts are counted", found == wanted, f"{len(found)} buried")
        gaps = [(n, at) for n, at in self._attempts if at > 1 and (n, at - 1) not in self._attempts]
        self._check("attempts have numbers in a row, each once", not gaps + self._twice, gaps + self._twice)
        early = [place for place in self._attempts if self._is_early(*place)]
        self._check("no task has two holders at a time", not early, early)
        calls = self._statistics()["calls"]
        same = (calls["take"], calls["put"]) == (len(self._attempts), len(self._wanted))
        self._check("takes and puts are counted", same, calls)
        findings = verify(self._database, root=self._root).findings
        self._check("`verify` finds no contradiction", not findings, "; ".join(one.text for one in findings))

    def _is_early(self, n: int, number: int) -> bool:
        """True if the attempt began before the one ahead of it had ended."""
        one, before = self._attempts[n, number], self._attempts.get((n, number - 1))
        if before is None:
            return False
        if before.ended is not None and before.how != "lost":
            return one.at < before.ended
        # A dead session ends a lease before its time. Without a signal, a busy machine may let it die: it has
        # beaten a third of its times ago at most.
        return one.at < (before.signalled or before.at + round(_SESSION_S * 2 / 3 * 1_000_000))


def _line(said: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(said)
    except ValueError:
        raise NoAnswer(f"it has said no JSON: {said[:60]!r}") from None
    return found if isinstance(found, dict) else {}


def judged(url: str, argv: Sequence[str]) -> Iterator[Row]:
    """Judge a consumer below a root of its own, which is removed. Raises: OSError if it cannot be started."""
    place = PLACE[RealRuntime().random_bytes(8)]
    with open_database(url) as database:
        try:
            for kind in KINDS:
                yield from Judge(url, database, place[kind], kind, argv).judged(Judge.work)
            for at, (kind, options) in enumerate(_REFUSED):
                one = Judge(url, database, place[at], kind, argv)
                yield from one.judged(partial(Judge.refuse, options=options))
        finally:
            database.clear_range_startswith(place.key())
