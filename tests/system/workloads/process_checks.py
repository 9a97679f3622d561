"""Checks the commits of several processes against the records that the commits themselves have stored.

A transaction stores a record under its versionstamp: its name, its read version, the values that it read, and
the keys that it wrote and cleared. So the records are the serial order of all commits, and hold no part of
the engine's own account.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from fdb import tuple as layer

from fdbqueue.core.database import Database
from fdbqueue.testing.simulation import Checker, Simulation
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
    name: bytes = op.argument[0]
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
    count = int.from_bytes(database[COUNT] or b"", "little")
    if count != sum(map(len, stored.values())):
        yield f"{count} commits were counted, and others are stored"


def one_serial_order(_: Trace, database: Database) -> Iterator[str]:
    """Check that each commit read the values that the commits before it had written."""
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
    ended = [op for op in trace.of(NAME, "commit") if op.done and name_of(op) in places]
    for earlier in ended:
        place = places[name_of(earlier)]
        for later in trace.of(NAME, "commit"):
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
    for op in trace.of(NAME, "commit"):
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
    return (op.subject, op.name) == (NAME, "commit")


def _higher(recovered: Database, ended: Sequence[Operation]) -> Iterator[str]:
    """Each version after the power cut is above all that were known before it."""
    known = [op.result[0] for op in ended if op.subject == NAME and op.name in ("read", "commit")]
    version = recovered.create_transaction().get_read_version().wait()
    if version <= max(known, default=0):
        yield f"after a power cut, the version is {version}, and {max(known)} was known"
