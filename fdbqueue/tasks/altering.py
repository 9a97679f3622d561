"""Altering: other options of a queue, while it is used.

A change stores the definition anew. Each call reads the definition serialisably, so a call that went by the
old options conflicts, and its retry goes by the new ones (core/partitions.py). A limit thus holds at each
commit. The last changes of a queue are kept beside its tasks, in one key:

    S[38]    altered    (count, entries, more)    the next change, `alterations`

Most options concern later calls only. Two leave something to fit, in bounded steps of any process that uses
the queue: with another number of tasks of a key at a time, a pointer appears or goes (stored/keyed.py);
without retention, the ended tasks go. While a definition has `settling`, takes check each pointer that they
follow.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from math import inf
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import InvalidArgument, UnsupportedOption
from fdbqueue.core.partitions import ring, ring_for_room
from fdbqueue.core.registry import Definition, told_option
from fdbqueue.core.rows import readable
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.feature import features_taken_back
from fdbqueue.tasks.options import OPTIONS, QUEUE_OPTIONS, UNSTORED, Backoff, Kind, Settings, as_given
from fdbqueue.tasks.source import Parts
from fdbqueue.tasks.stored.key_counts import key_of, readable_state
from fdbqueue.tasks.stored.keyed import Keyed, is_slug

_OF_TASKS = ("ttl", "ttr", "pri", "retain_s", "chronicle", "attempts", "backoff", "result_ttl")
ALTERABLE = frozenset({*_OF_TASKS, "capacity", "key_concurrency", "weights"})
"""The options that may change."""
_ANOTHER = "create another queue, and let the workers empty this one"
LASTING: Mapping[str, str] = {
    "kind": f"stored tasks lie in its order. Instead, {_ANOTHER}",
    "codec": f"stored payloads are in it. Instead, {_ANOTHER}",
    "type": "it is not stored. Instead, give it to `open`",
    "charge": f"its rounds would have another length. Instead, {_ANOTHER}",
    "partitions": "its tasks have to move. Instead, use `repartition`",
    "limits": f"stored tasks count under them. Instead, set the limits themselves, or {_ANOTHER}",
    "task_limits": f"stored tasks lie in their lanes. Instead, set the limits themselves, or {_ANOTHER}",
    "temporary": f"its tasks belong to a session, or to none. Instead, {_ANOTHER}",
    "root": "its keys lie there. Instead, export the queue, and import it under the other root",
}
"""The options that stay, each with the reason and the way that works."""
TOLD_MAX = 200
"""Characters of a value in the history."""


@dataclass(frozen=True, slots=True)
class Alteration:
    """A change of the options of a queue."""

    at: float
    by: str
    """The process that made it, as host:process id."""
    changes: Mapping[str, tuple[Any, Any]]
    """By option, its value before and after, as in `create`; weights, a backoff and inf as text. Empty if
    nothing changed.
    """


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    at_us: int
    by: str
    changes: dict[str, tuple[Any, Any]]


class _History(msgspec.Struct, frozen=True, array_like=True):
    count: int = 0
    """The number of all changes."""
    entries: tuple[_Entry, ...] = ()
    """The last limits.ALTERATIONS_MAX of them."""
    more: tuple[Any, ...] = ()


_history_of = msgspec.msgpack.Decoder(_History).decode


def checked(kind: Kind, given: Mapping[str, Any]) -> dict[str, Any]:
    """The stored form of new options; None stands for that of a queue created without the option.

    Raises: UnsupportedOption, InvalidArgument.
    """
    if not given:
        raise InvalidArgument(name="options", wanted=f"one of {', '.join(sorted(ALTERABLE))}", got=None)
    return {name: _stored(kind, name, value) for name, value in given.items()}


def _stored(kind: Kind, name: str, value: Any) -> Any:
    if name in LASTING:
        text = f"The option {name!r} of a queue cannot change: {LASTING[name]}."
        raise UnsupportedOption(text, kind=kind.name, option=f"another {name}")
    if name not in ALTERABLE:
        raise InvalidArgument(name=name, wanted=f"one of {', '.join(sorted(ALTERABLE))}", got=value)
    if name in OPTIONS:
        kind.require(name)
    if value is None:
        return getattr(Settings(), name)
    stored = msgspec.to_builtins(QUEUE_OPTIONS[name].check(name, value))
    # For ever: with None, a lease would last for the ttl.
    return limits.SPAN_MAX_S if name == "ttr" and stored is None else stored


def alter(change: Change, asked: Mapping[str, Any], by: str) -> Alteration:
    """Store other options. Reads, writes and raises as TaskQueue.alter."""
    change.require_queue()
    tr, shape, entry = change.tr, change.shape, _Entry(change.now_us, by, {})
    found = shape.registry.find(tr, shape.name)
    before = {name: found.options.get(name, getattr(Settings(), name)) for name in asked}
    news = {name: value for name, value in asked.items() if value != before[name]}
    for name in news:
        if name in ("key_concurrency", "weights") and not hasattr(shape.discipline, "alter"):
            raise UnsupportedOption(kind=shape.kind.name, option=f"another {name}")
        entry.changes[name] = (_told(name, before[name]), _told(name, news[name]))
    if not news:
        return _shown(entry)
    history = readable(_history_of, tr.get(shape.shared.altered).value) or _History()
    count = max(history.count, found.options.get("settling") or 0) + 1
    entries = (*history.entries, entry)[-limits.ALTERATIONS_MAX :]
    tr.set(shape.shared.altered, msgspec.msgpack.encode(_History(count, entries, history.more)))
    taken_back = any(name in news and not news[name] for name in ("retain_s", "chronicle"))
    fits = "key_concurrency" in news or taken_back
    settling = count if fits or found.options.get("settling") else None
    _store(change, found, {**news, "settling": settling})
    return _shown(entry)


def alterations(change: Change) -> list[Alteration]:
    value = change.tr.snapshot.get(change.shape.shared.altered).value
    history = readable(_history_of, value) or _History()
    return [_shown(entry) for entry in reversed(history.entries)]


def _store(change: Change, found: Definition, news: Mapping[str, Any]) -> None:
    """Store the options, and wake takes and puts that wait. Conflicts: every call on the queue."""
    tr, shape = change.tr, change.shape
    options = {**found.options, **news}
    kept = {name: value for name, value in options.items() if value or name not in UNSTORED}
    tr.set(shape.root.definition(shape.name), replace_fields(found, options=kept).to_bytes())
    change.count("other")
    if change.plan is not None:
        ring(tr, shape.shared)
        ring_for_room(tr, shape.shared)


def _told(name: str, value: Any) -> Any:
    """A stored value as a caller gives it."""
    given = as_given({name: value})[name]
    if name == "weights":
        return told_option(given or None)[:TOLD_MAX]
    return str(given) if given == inf or isinstance(given, Backoff) else given  # JSON has no inf


def _shown(entry: _Entry) -> Alteration:
    return Alteration(entry.at_us / 1_000_000, entry.by, entry.changes)


class Altering:
    """The steps of one process that fit what is stored to other options."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._known: Definition | None = None
        """The definition that the steps go by. With another one, they begin again; after a restore of data,
        an equal one is another.
        """
        self._part, self._after = 0, b""

    def step(self, tr: Transaction) -> bool:
        """Take one step. False if nothing is left to fit.

        Reads: the definition; states of task keys by snapshot, serialisably to change them.
        Writes: states and pointers that do not fit; the definition, at the end.
        Conflicts: a change of these task keys; at the end, every call on the queue.
        """
        parts = self._parts
        known, settling, plan = parts.shape.definition, parts.shape.settings.settling, parts.plan
        parts.zero.guard(tr)()
        if parts.shape.definition is not known or parts.plan is not plan:
            raise conflict_in(tr)  # another thread has met a later definition
        if settling is None:
            return False
        if known is not self._known:
            self._known, self._part, self._after = known, 0, b""
        if self._part < (1 if plan is None else plan.high):
            self._fit(parts.part(self._part).change(tr))
            return True
        change = parts.zero.change(tr)
        _store(change, parts.shape.registry.find(tr, parts.shape.name), {"settling": None})
        change.finish()
        return True

    def _fit(self, change: Change) -> None:
        """Fit the next batch. The same one comes again, in case this does not commit."""
        shape = change.shape
        root, id_ = shape.root.prefix, shape.definition.id
        if any(one.sweep(change.site) for one in features_taken_back(shape.settings, root, id_, ALTERABLE)):
            return
        keyed = shape.discipline
        if not isinstance(keyed, Keyed) or not keyed.counts_taken:
            self._part += 1
            return
        start = keyed.states.start + self._after + (b"\x00" if self._after else b"")
        rows = change.tr.snapshot.get_range(start, keyed.states.stop, limit=limits.VERB_BATCH).to_list()
        slugs = {row.key[len(keyed.states.start) :]: row.value for row in rows}
        if _refitted(change, keyed, slugs):
            return
        if len(rows) == limits.VERB_BATCH:
            self._after = [*slugs][-1]
        else:
            self._part, self._after = self._part + 1, b""


def _refitted(change: Change, keyed: Keyed, slugs: Mapping[bytes, bytes]) -> bool:
    """Fit the task keys of these states. True if any did not fit."""
    tr, keys = change.tr, [key_of(slug) for slug, value in slugs.items() if _may_change(keyed, slug, value)]
    asked = [(key, keyed.ask_oldest(tr.snapshot, key)) for key in keys]  # in one round trip
    fitted = [keyed.refit(tr, key) for key, fifo in asked if fifo.to_list()]
    if not any(fitted):
        return False
    change.count("other")  # wakes takes
    change.expect_ready()
    change.finish()
    return True


def _may_change(keyed: Keyed, slug: bytes, value: bytes) -> bool:
    state = readable_state(value) if is_slug(slug) else None
    return state is not None and bool(state.pointer) != keyed.is_open(state)
