"""Checks the commits of several processes after a power cut: a process of the next boot opens the files."""

from collections.abc import Iterator, Sequence
from random import Random

from fdbqueue.core.database import Database
from fdbqueue.testing.simulation import Checker, Simulation
from fdbqueue.testing.trace import Operation, Trace
from tests.system.processes import PowerCut, processes_of
from tests.system.workloads.process_checks import (
    COUNT,
    NAME,
    Record,
    name_of,
    one_serial_order,
    records,
)


def survives_power_cuts(
    simulation: Simulation, cuts: Sequence[PowerCut], closing: Sequence[str] = ()
) -> Checker:
    """Make a checker of `cuts`, and of one at the end of the run. `closing`: all processes, if each flush of
    theirs succeeds. When each of them has closed its database, the last cut loses nothing.
    """

    def check(trace: Trace, database: Database) -> Iterator[str]:
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

    return check


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
