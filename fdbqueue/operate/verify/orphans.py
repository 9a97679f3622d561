"""Keys of queues that are gone: contents and progress below an id that no definition has."""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core.database import Database, run
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.cures import FOREIGN, Cures
from fdbqueue.operate.verify.root import RootChecks
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.values import Flaw


def orphans(database: Database, registry: Registry, checks: RootChecks) -> Iterator[Suspect]:
    """The ids without a definition, and those with two. `checks` has seen the definitions."""
    for key in _first_keys(database, registry):
        id_ = registry.keys.id_in(key)
        if id_ is None:
            yield Suspect(Flaw.UNKNOWN, key, "No queue can have a key of this shape.", FOREIGN)
        elif id_ not in checks.names:
            yield from run(database, partial(_judge, registry, id_))
    for id_ in sorted(checks.imported - checks.names.keys()):
        yield from run(database, partial(_judge, registry, id_))
    for id_, names in sorted(checks.names.items()):
        if len(names) > 1:
            yield from run(database, partial(_judge_twins, registry, id_))


def _first_keys(database: Database, registry: Registry) -> Iterator[bytes]:
    """The first key below each id: one read each."""
    start, stop = registry.keys.all_contents.start, registry.keys.all_contents.stop
    while (first := run(database, partial(_first_key, start, stop))) is not None:
        yield first
        id_ = registry.keys.id_in(first)
        behind = first + b"\x00"
        start = behind if id_ is None else max(behind, registry.keys.contents(id_ + 1).key())


def _first_key(start: bytes, stop: bytes, tr: Transaction) -> bytes | None:
    rows = tr.snapshot.get_range(start, stop, limit=1).to_list()
    return bytes(rows[0].key) if rows else None


def _judge(registry: Registry, id_: int, tr: Transaction) -> list[Suspect]:
    """Look at the definitions and the keys of the id at one version. Reads: by snapshot."""
    keys = [_first_key(under.start, under.stop, tr) for under in _ranges(registry, id_)]
    key = next((key for key in keys if key is not None), None)
    if tr.snapshot.get(registry.keys.lost_members(id_)).present():
        return []  # a sweep of groups counts the members off that the drop has removed
    if key is None or id_ in _known(registry, tr, serialisable=False):
        return []
    text = f"Keys belong to the queue {id_}, which has no definition: it was dropped."
    return [Suspect(Flaw.ORPHAN, key, text, Cures(None).mending, partial(_clear, registry, id_))]


def _judge_twins(registry: Registry, id_: int, tr: Transaction) -> list[Suspect]:
    names = [name for name, known in _definitions(registry, tr, serialisable=False) if known == id_]
    if len(names) < 2:
        return []
    text = f"The queues {', '.join(map(repr, names))} have the same id, so they share their contents."
    key = registry.keys.definition(names[-1])
    return [Suspect(Flaw.DEFINITION, key, text, "Copy the tasks to a new queue: a drop removes them all.")]


def _clear(registry: Registry, id_: int, tr: Transaction) -> None:
    """Clear the keys of a queue that no definition has. Conflicts: a create."""
    if id_ not in _known(registry, tr, serialisable=True):
        for under in _ranges(registry, id_):
            tr.clear_range(under.start, under.stop)


def _ranges(registry: Registry, id_: int) -> tuple[slice, ...]:
    """The keys of a queue: its contents, and the progress of imports into it."""
    return registry.keys.contents(id_).range(), registry.keys.imports_into(id_)


def _known(registry: Registry, tr: Transaction, *, serialisable: bool) -> set[int]:
    return {id_ for _, id_ in _definitions(registry, tr, serialisable=serialisable)}


def _definitions(registry: Registry, tr: Transaction, *, serialisable: bool) -> Iterator[tuple[str, int]]:
    under = registry.keys.definitions
    for row in (tr if serialisable else tr.snapshot).get_range(under.start, under.stop):
        name = registry.keys.name_of(row.key)
        if name is not None:
            yield name, Definition.listed(name, row.value).id
