"""Processes over one directory that commit for each other; each may die or stop at any system call.

A transaction stores a record under its versionstamp: its name, its read version, the values that it read, and
the keys that it wrote and cleared. So the records are the serial order of all commits, and hold no part of
the account of the engine.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from fdb import tuple as layer

from fdbqueue.core.database import Database
from fdbqueue.core.seam import MAYBE_COMMITTED, FDBError, NotDirect
from fdbqueue.embedded.writes import stamp
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.engine import scattered
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.processes import PowerCut, processes_of
from tests.system.workloads.common import checker

NAME = "commits"
DONE, BY, COUNT = b"done/", b"by/", b"count"
LATE = b".late"
"""The end of the name of a commit that waits for no flush: a power cut may undo it."""
PROMPT_S = 2.0
_CONFLICT, _TOO_OLD = 1020, 1007
_AGE_MAX_S = 5.0


@dataclass(frozen=True)
class Record:
    """A commit, as its own record describes it."""

    version: int
    order: int
    name: bytes
    read_version: int
    seen: tuple[tuple[bytes, bytes | None], ...]
    written: tuple[bytes, ...]
    cleared: tuple[bytes, ...]

    @property
    def place(self) -> tuple[int, int]:
        return self.version, self.order

    @property
    def is_durable(self) -> bool:
        return not self.name.endswith(LATE)


def checks(simulation: Simulation, *, is_calm: bool = True) -> Sequence[Checker]:
    """Return the checkers. `is_calm`: no process is stopped, so no answer is late."""
    is_calm = is_calm and "stall" not in simulation.faults.active
    return [
        stored_once,
        one_serial_order,
        versions_grow,
        conflicts_are_true,
        decided_at_the_interrupt,
        *([answered_in_time] if is_calm else []),
    ]


def records(database: Database) -> list[Record]:
    """Return the stored records, in the order of their stamps."""
    found = []
    for entry in database.get_range_startswith(DONE):
        stamp = entry.key.removeprefix(DONE)
        place = int.from_bytes(stamp[:8], "big"), int.from_bytes(stamp[8:], "big")
        found.append(Record(*place, *layer.unpack(entry.value)))
    return found


def name_of(op: Operation) -> bytes:
    name: bytes = op.argument if op.name == "direct" else op.argument[0]
    return name


def is_conflict(op: Operation) -> bool:
    return getattr(op.error, "code", None) == _CONFLICT


def is_late(trace: Trace, op: Operation) -> bool:
    """True if the transaction was too old, five seconds or more after its read version. A process may stand
    still in its commit, too.
    """
    read = next(one for one in trace.of(NAME, "read") if one.argument == name_of(op))
    is_old = op.ended_s is not None and op.ended_s - read.began_s >= _AGE_MAX_S
    return is_old and getattr(op.error, "code", None) == _TOO_OLD


def stored_once(trace: Trace, database: Database) -> Iterator[str]:
    """Check each answer: the commit is stored once, at that place; or it is refused, and is not stored."""
    stored: defaultdict[bytes, list[tuple[int, int]]] = defaultdict(list)
    for record in records(database):
        stored[record.name].append(record.place)
    for op in trace.of(NAME, "commit"):
        places = stored[name_of(op)]
        if len(places) > 1:
            yield f"commit {name_of(op)!r} is stored {len(places)} times"
        if op.done and places != [tuple(op.result)]:
            yield f"commit {name_of(op)!r} was answered {op.result}, and is stored at {places}"
        if op.error is not None and (places or not (is_conflict(op) or is_late(trace, op))):
            yield f"commit {name_of(op)!r} raised {op.error!r}, and is stored at {places}"
    for op in trace.of(NAME, "direct"):
        places, told = stored[op.argument], [] if op.result is None else [tuple(op.result)]
        if (op.done or op.error is not None) and places != told:
            yield f"direct commit {op.argument!r} was answered {op.result}, and is stored at {places}"
    count = int.from_bytes(database[COUNT] or b"", "little")
    if count != sum(map(len, stored.values())):
        yield f"{count} commits were counted, and others are stored"


def one_serial_order(_: Trace, database: Database) -> Iterator[str]:
    values: dict[bytes, bytes | None] = {}
    for record in records(database):
        for key, seen in record.seen:
            if values.get(key) != seen:
                yield f"commit {record.name!r} read {seen!r} under {key!r}, where {values.get(key)!r} was"
        values |= dict.fromkeys(record.cleared) | dict.fromkeys(record.written, record.name)
    for key, value in values.items():
        if database[key] != value:
            yield f"{key!r} is {database[key]!r}, and the last commit wrote {value!r}"


def versions_grow(trace: Trace, database: Database) -> Iterator[str]:
    """Check that commits and reads follow all commits that had returned, and that each batch is numbered."""
    places = {record.name: record.place for record in records(database)}
    commits = [*trace.of(NAME, "commit"), *trace.of(NAME, "direct")]
    ended = [op for op in commits if op.done and name_of(op) in places]
    for earlier in ended:
        place = places[name_of(earlier)]
        for later in commits:
            if earlier.before(later) and places.get(name_of(later), place) < place:
                yield f"commit {name_of(later)!r} stands before {name_of(earlier)!r}, which had ended"
        for read in trace.of(NAME, "read"):
            if read.done and earlier.before(read) and read.result[0] < place[0]:
                yield f"{read.argument!r} reads before {name_of(earlier)!r}, which had ended"
    for version in {version for version, _ in places.values()}:
        orders = sorted(order for found, order in places.values() if found == version)
        if orders != list(range(len(orders))):
            yield f"the commits of version {version} have the orders {orders}"


def conflicts_are_true(trace: Trace, database: Database) -> Iterator[str]:
    """Check that each refused transaction had read a key that another commit wrote after its read version."""
    stored = records(database)
    for op in filter(is_conflict, trace.of(NAME, "commit")):
        name, read_version, keys = op.argument
        if not any(one.version > read_version and set(keys) & {*one.written, *one.cleared} for one in stored):
            yield f"commit {name!r} was refused, and nothing wrote {keys} after {read_version}"


def decided_at_the_interrupt(trace: Trace, database: Database) -> Iterator[str]:
    """Check that an interrupted commit that had not happened never happened."""
    stored = {record.name for record in records(database)}
    for op in trace.of(NAME, "look"):
        if op.done and op.result != (op.argument in stored):
            yield f"commit {op.argument!r} was interrupted, and decided later"


def answered_in_time(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no call waits for a dead process."""
    for op in (*trace.of(NAME, "commit"), *trace.of(NAME, "direct")):
        if op.ended_s is not None and op.ended_s - op.began_s > PROMPT_S:
            yield f"commit {name_of(op)!r} took {op.ended_s - op.began_s:.2f} s"


# Checkers.


@checker
def survives_power_cuts(
    trace: Trace,
    database: Database,
    simulation: Simulation,
    cuts: Sequence[PowerCut],
    closing: Sequence[str] = (),
) -> Iterator[str]:
    """Make a checker of `cuts`, and of one at the end of the run. `closing`: all processes, if each flush of
    theirs succeeds. When each of them has closed its database, the last cut loses nothing.
    """
    stored = records(database)
    ends = {name for _, name, what, _ in trace.events if what == "finished"}
    have_closed = bool(closing) and ends.issuperset(closing)
    last = processes_of(simulation).power_cut(Random(simulation.seed))
    for cut in [*cuts, last]:
        visible = [record for record in stored if record.version <= cut.version]
        ended = [op for op in trace.operations if op.done and (op.ended or 0) < cut.events]
        try:
            with processes_of(simulation).recovered(cut) as recovered:
                if not cut.deceives:
                    are_durable = have_closed and cut is last
                    yield from _complete(recovered, visible, ended, are_durable=are_durable)
                yield from one_serial_order(trace, recovered)
                yield from _higher(recovered, ended)
        except Exception as error:
            yield f"after a power cut, the directory raises {error!r}"


def _complete(
    recovered: Database, visible: Sequence[Record], ended: Sequence[Operation], *, are_durable: bool
) -> Iterator[str]:
    """Each commit that was visible is there up to the last durable one, and the others in order. Behind them
    there may be one version that was never visible: the leader died with its record on the disk.
    """
    found = records(recovered)
    pairs = zip(found, visible, strict=False)
    kept = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(found), len(visible)))
    durable = max((record.version for record in visible if record.is_durable or are_durable), default=0)
    lost, never_seen = visible[kept:], found[kept:]
    if lost and lost[0].version <= durable:
        names = {record.name for record in lost}
        yield f"after a power cut, {sorted(names)} are lost, of {len(visible)} that were visible"
    if len({record.version for record in never_seen}) > 1:
        yield "after a power cut, there are several versions that were never visible"
    places = {record.name: record.place for record in found[:kept]}
    for op in ended:
        is_kept = _is_commit(op) and (name_of(op) in places or op.result[0] <= durable)
        if is_kept and places.get(name_of(op)) != tuple(op.result):
            yield f"after a power cut, {name_of(op)!r} is at {places.get(name_of(op))}, not at {op.result}"
    if int.from_bytes(recovered[COUNT] or b"", "little") != len(found):
        yield "after a power cut, another number of commits is counted than stored"


def _is_commit(op: Operation) -> bool:
    return op.subject == NAME and (op.name == "commit" or (op.name == "direct" and op.result is not None))


def _higher(recovered: Database, ended: Sequence[Operation]) -> Iterator[str]:
    """Each version after the power cut is above all that were known before it."""
    known = [op.result[0] for op in ended if _is_commit(op) or (op.subject, op.name) == (NAME, "read")]
    version = recovered.create_transaction().get_read_version().wait()
    if version <= max(known, default=0):
        yield f"after a power cut, the version is {version}, and {max(known)} was known"


PREFIX = b"key/"
KEYS = [PREFIX + b"%d" % number for number in range(3)]
ONE, _STAMP = (1).to_bytes(8, "little"), bytes(10)
THREADS_MAX = 2
END_S = 20_000.0
LATE_P, DIRECT_P, REFUSES_P, CLEARS_P = 0.2, 0.7, 0.2, 0.2
POINTS_MAX = 30_000  # ten times those of a long run: a process that polls makes more
UNFLUSHED_CUTS_MAX = 6
WRITERS_KILLED, BEHIND_MAX, STOP_S = 2, 2, 30.0
FAILS_P = 0.3  # of the runs
CUTS_MAX, CUT_S = 2, (0.005, 0.5)
STRIKE_S, NEAR_S = (0.005, 0.1), 0.02


@workload(clients=3, steps=4, never=("slow_reply",))
def processes(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Processes over one directory that commit for each other; each may die or stop at any system call."""
    return [*commits_of(simulation, size, tried), one_leader]


@workload(clients=3, steps=4, never=("slow_reply",))
def direct(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """As `processes`, with direct transactions beside ordinary ones; some wait for no flush."""

    def attempt(client: Client, name: bytes, is_pausing: bool) -> None:
        late = LATE if client.random.random() < LATE_P else b""
        if client.random.random() < DIRECT_P:
            tried_directly(client, name + late)
        else:
            tried(client, name + late, is_pausing)

    return commits_of(simulation, size, attempt)


def commits_of(
    simulation: Simulation, size: Size, attempt: Callable[[Client, bytes, bool], object]
) -> Sequence[Checker]:
    simulation.end_at(END_S)
    simulation.scheduler.points_max = POINTS_MAX
    threads = [simulation.random.randint(0, THREADS_MAX) for _ in range(size.clients)]
    is_pausing = simulation.random.random() < 0.3
    may_interrupt = simulation.random.random() < 0.5

    def process(number: int, client: Client) -> None:
        beside = [client.thread(partial(work, thread), f"{thread}") for thread in range(threads[number])]
        for step in range(size.steps):
            if may_interrupt and client.random.random() < 0.5:
                after_s = scattered(client.random, 0.0002, 0.1)
                interrupted(client, label(client, "main", step), after_s, is_alone=not beside)
            else:
                attempt(client, label(client, "main", step), is_pausing)
            client.pause(0.05)
        for thread in beside:
            thread.join()

    def work(thread: int, client: Client) -> None:
        for step in range(size.steps):
            attempt(client, label(client, thread, step), is_pausing)
            client.pause(0.05)

    for number in range(size.clients):
        processes_of(simulation).add(partial(process, number), f"process-{number}")
    processes_of(simulation).add(lambda client: tried(client, b"late"), "late-comer")
    fails = strike_near_commits(simulation)
    cuts = cut_near_commits(simulation)
    known = [] if fails or may_interrupt else [no_result_unknown]
    return [*checks(simulation), survives_power_cuts(simulation, cuts), *known]


def label(client: Client, thread: object, step: int) -> bytes:
    return f"{client.name}.{thread}.{step}".encode()


def tried(client: Client, name: bytes, is_pausing: bool = False) -> bool:
    """Try one transaction, once; it may pause between its reads and its commit."""
    with in_doubt(client, name):
        tr = client.db.create_transaction()
        if name.endswith(LATE):
            tr.options.set_durability_risky()
        read_version, keys = client.call(NAME, "read", name, lambda: prepared(client, tr, name))
        if is_pausing:
            client.pause(0.02)
        client.call(NAME, "commit", (name, read_version, keys), lambda: committed(tr))
    return True


class Refused(Exception):
    """A body refuses, after it has written."""


def tried_directly(client: Client, name: bytes) -> bool:
    """Try one direct transaction, and an ordinary one where it cannot be direct; some bodies refuse."""
    engine: Any = client.db.engine
    draw, place = client.random.random(), (-1, -1)
    refuses = client.random.random() < REFUSES_P

    def body(tr: Any) -> None:
        nonlocal place
        random, place = Random(draw), tr.place
        if name.endswith(LATE):
            tr.options.set_durability_risky()
        seen = {key: tr.get(key).value for key in random.sample(KEYS, 2)}
        written, cleared = random.sample(KEYS, 1), KEYS if random.random() < CLEARS_P else []
        if cleared:
            tr.clear_range(PREFIX, PREFIX + b"\xff")
        for key in (*written, BY + name):
            tr.set(key, name)
        assert tr.get(written[0]).value == name
        tr.add(COUNT, ONE)
        stored = layer.pack((name, place[0] - 1, tuple(seen.items()), tuple(written), tuple(cleared)))
        tr.set(DONE + stamp(*place), stored)
        if refuses:
            raise Refused

    def run() -> tuple[int, int] | None:
        try:
            engine.run_directly(body)
        except (NotDirect, Refused):
            return None
        assert not refuses, "the error of a body is lost"
        return place

    with in_doubt(client, name):
        if client.call(NAME, "direct", name, run) is not None or refuses:
            return True
    return tried(client, b"ordinary " + name)


@contextmanager
def in_doubt(client: Client, name: bytes) -> Iterator[None]:
    """Survive an error, and record an unknown result."""
    try:
        yield
    except FDBError as error:
        if error.code in MAYBE_COMMITTED:
            client.call(NAME, "doubt", name, bool)


def no_result_unknown(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each process that lives learns the result: the log has the answers of dead leaders."""
    yield from (f"the result of {op.argument!r} stayed unknown" for op in trace.of(NAME, "doubt"))


def one_leader(trace: Trace, _: Database) -> Iterator[str]:
    """Check that only the leader of the current epoch commits. The loss of a late flush is noted without."""
    yield from (f"{name} {what}" for _, name, what, _ in trace.events if what == "commits without the lead")


def interrupted(client: Client, name: bytes, after_s: float, *, is_alone: bool) -> None:
    """Interrupt one transaction after a time, and look whether it has happened: later it may not happen.

    In a process of several threads it may: another thread may be committing it.
    """
    if client.interrupted(after_s, lambda: tried(client, name)) is None and is_alone:
        client.call(NAME, "look", name, lambda: client.db[BY + name] is not None)


def prepared(client: Client, tr: Any, name: bytes) -> tuple[int, tuple[bytes, ...]]:
    """Read some keys, and ask for writes; return the read version and the keys that were read."""
    random = client.random
    read_version = tr.get_read_version().wait()
    seen = seen_in(tr, random.sample(KEYS, random.randint(0, 2)), by_range=random.random() < 0.2)
    cleared = KEYS if random.random() < 0.2 else []
    written = random.sample(KEYS, random.randint(0 if cleared else 1, 2))
    if cleared:
        tr.clear_range_startswith(PREFIX)
    for key in (*written, BY + name):
        tr[key] = name
    tr.add(COUNT, ONE)
    record = layer.pack((name, read_version, tuple(seen.items()), tuple(written), tuple(cleared)))
    tr.set_versionstamped_key(DONE + _STAMP + len(DONE).to_bytes(4, "little"), record)
    return read_version, tuple(seen)


def committed(tr: Any) -> tuple[int, int]:
    """Commit; return the version, and the order in its batch."""
    stamp = tr.get_versionstamp()
    tr.commit().wait()
    return tr.get_committed_version(), int.from_bytes(stamp.wait()[8:], "big")


def seen_in(tr: Any, keys: list[bytes], *, by_range: bool) -> dict[bytes, bytes | None]:
    """Return the values of some keys, or of all if they are read as a range."""
    if by_range:
        found = {bytes(entry.key): bytes(entry.value) for entry in tr.get_range_startswith(PREFIX)}
        return {key: found.get(key) for key in KEYS}
    return {key: value_of(tr, key) for key in keys}


def value_of(tr: Any, key: bytes) -> bytes | None:
    value = tr[key]
    return bytes(value) if value.present() else None


@workload(clients=3, steps=4, never=("slow_reply",))
def unflushed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    """Commits that wait for no flush beside durable ones; the power is cut as a commit returns."""
    simulation.end_at(END_S)
    simulation.scheduler.points_max = POINTS_MAX
    random, cuts = Random(f"{simulation.seed} power"), list[PowerCut]()
    late_p, cut_p = random.random(), random.choice((0.1, 0.5))

    def process(number: int, client: Client) -> None:
        for step in range(size.steps):
            is_late = client.random.random() < late_p
            tried(client, label(client, number, step) + (LATE if is_late else b""))
            if len(cuts) < UNFLUSHED_CUTS_MAX and client.random.random() < cut_p:
                cuts.append(processes_of(simulation).power_cut(random))
            client.pause(0.05)

    names = [f"process-{number}" for number in range(size.clients)]
    for number, name in enumerate(names):
        processes_of(simulation).add(partial(process, number), name)
    fails = random.random() < FAILS_P
    if fails:
        processes_of(simulation).fail_flush(scattered(random, *STRIKE_S))
    return [*checks(simulation), survives_power_cuts(simulation, cuts, () if fails else names)]


def strike_near_commits(simulation: Simulation) -> bool:
    """Kill and stop processes while they commit or just after it, and one while it waits, in some runs.

    Return True if the disk fails too: then some results are unknown.
    """
    random = simulation.random
    active = set(simulation.faults.active) if random.random() < 0.5 else set()
    if "die" in active:
        simulation.kill("process-0", scattered(random, *STRIKE_S))
        for _ in range(WRITERS_KILLED):
            processes_of(simulation).kill_writer(scattered(random, *STRIKE_S), random.uniform(0, NEAR_S))
        behind = Random(f"{simulation.seed} behind")
        for _ in range(behind.randint(0, BEHIND_MAX)):
            processes_of(simulation).kill_behind_commit(scattered(behind, *STRIKE_S))
    if "stall" in active:
        processes_of(simulation).stop_writer(scattered(random, *STRIKE_S), random.uniform(0, NEAR_S), STOP_S)
    fails = random.random() < FAILS_P
    if fails:
        processes_of(simulation).fail_flush(scattered(random, *STRIKE_S))
    return fails


def cut_near_commits(simulation: Simulation) -> list[PowerCut]:
    """Cut the power at some moments, beside the one at the end; return the cuts as they come."""
    random = Random(f"{simulation.seed} power")
    cuts: list[PowerCut] = []
    for _ in range(random.randint(0, CUTS_MAX)):
        at_s = scattered(random, *CUT_S)
        simulation.scheduler.call_at(at_s, lambda: cuts.append(processes_of(simulation).power_cut(random)))
    return cuts
