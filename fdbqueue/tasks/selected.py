"""Selected: waiting tasks that filters choose, and a verb, or new options, for all of them.

A walk looks at the tasks by their ids, through all partitions together. A task keeps its id, so a walk that
ends has met each task once, wherever that moves meanwhile. A step is one bounded transaction. It reads the
next tasks by snapshot, and serialisably those that it changes: a take before its commit keeps the task.

Each attempt of a step changes half as many tasks as the one before. Otherwise takes of the first tasks could
abort a large step again and again.

A taken task is none of them, also while its lease is over and no sweep has ended it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_seconds, checked_text, too_many
from fdbqueue.core.database import Database, at_pace, is_transaction
from fdbqueue.core.errors import InvalidArgument, WrongType
from fdbqueue.core.page import place_bytes, place_text, within_bytes
from fdbqueue.core.registry import checked_name
from fdbqueue.core.seam import DatabaseOrTransaction, engine_errors
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN, Task
from fdbqueue.core.unreadable import shown
from fdbqueue.tasks import edges
from fdbqueue.tasks.change import Change, ask_payload, shown_tasks
from fdbqueue.tasks.failures import class_of, moved_bytes
from fdbqueue.tasks.feature import SOUGHT, Filter, asking, filters_among
from fdbqueue.tasks.handle import TaskHandle
from fdbqueue.tasks.options import Draft, checked_pri, key_bytes, later
from fdbqueue.tasks.redrive import Chosen, Elsewhere, by_partition
from fdbqueue.tasks.shape import Shape
from fdbqueue.tasks.stored.records import NEVER_US, Extra, Record, id_of, partition_of, sound_record
from fdbqueue.tasks.verbs import TRANSACTION_TOO_LARGE

STATES = {"ready": READY, "delayed": DELAYED, "buried": BURIED}
EVERY = frozenset(STATES.values())
NAMES = "state, id, key, unique, group, headers.NAME, older_than, class, or data.PATH"
OPTIONS = ("pri", "delay", "limits", "queue")
KEPT_BY_A_MOVE = ("pri", "delay", "ttl", "ttr", "key", "cost")
NOTHING = object()
T = TypeVar("T")
Edge = Callable[[Change, Sequence[Record]], list[Record]]


@dataclass(frozen=True, slots=True)
class ChangedTasks:
    """How far `change` has come. Append fields with a default."""

    looked_at: int = 0
    """Tasks that it has looked at, in any state."""
    matched: int = 0
    changed: int = 0
    """Those that it has changed; in a dry run, none. A task that already is as it should be is not one."""
    after: str | None = None
    """The `after` of the call that goes on behind the last of them; None at the end."""
    examples: tuple[Task, ...] = ()
    """In a dry run, the first limits.EXAMPLES tasks that match, by their ids."""


@dataclass(frozen=True)
class Where:
    """Filters of waiting tasks; one that is None, 0 or empty lets all through."""

    states: frozenset[str] = EVERY
    ids: frozenset[bytes] = frozenset()
    key: bytes | None = None
    by: Sequence[Filter] = ()
    """Those of features: a unique key, a group."""
    headers: Mapping[str, str] = field(default_factory=dict)
    older_than_us: int = 0
    error: str | None = None
    """The class of failure of buried tasks."""
    data: Sequence[tuple[Sequence[str], Any]] = ()
    """Paths in the data, each with the value that is there."""

    @property
    def names_tasks(self) -> bool:
        """True if an index has their ids."""
        return bool(self.ids or self.by)

    def matches(self, record: Record, now_us: int) -> bool:
        """True for a task that all filters let through, apart from those of the data."""
        headers, state = {} if record.extra is None else record.extra.headers, _state_of(record, now_us)
        return (
            state in self.states
            and (not self.ids or record.id in self.ids)
            and (self.key is None or record.key == self.key)
            and all(one.matches(record, state, now_us) for one in self.by)
            and all(headers.get(name) == text for name, text in self.headers.items())
            and (not self.older_than_us or record.created_us <= now_us - self.older_than_us)
            and (self.error is None or record.error == self.error)
        )

    def matches_data(self, data: Any) -> bool:
        return all(_is_same(_found(data, path), value) for path, value in self.data)


def _state_of(record: Record, now_us: int) -> str:
    """The state of a task, which is ready once its delay is over; empty for an expired task."""
    current = record if record.state == TAKEN else edges.as_of(record, now_us)
    return "" if current is None else current.state


def _found(data: Any, path: Sequence[str]) -> Any:
    """The value at the path: a name of an object or an attribute, or a number of a list, after the other.

    `__dict__` would tell all attributes, so names like it are none.
    """
    for part in path:
        if isinstance(data, Mapping):
            data = data.get(part, NOTHING)
        elif isinstance(data, list | tuple):
            is_place = part.isdecimal() and len(part) < 10 and int(part) < len(data)
            data = data[int(part)] if is_place else NOTHING
        else:
            data = NOTHING if part.startswith("__") else getattr(data, part, NOTHING)
    return data


def _is_same(found: Any, wanted: Any) -> bool:
    return isinstance(found, bool) == isinstance(wanted, bool) and bool(found == wanted)


@dataclass(frozen=True)
class Edit:
    """The change of the tasks: a verb, another queue, or new options; None for an option that stays."""

    verb: str | None = None
    into: str | None = None
    pri: int | None = None
    delay_us: int | None = None
    limits: Mapping[str, Any] | None = None
    """Fields of `Extra`."""
    edge: Edge | None = None
    """In place of the edge of the verb: one that writes the tasks elsewhere, too."""

    @property
    def states(self) -> frozenset[str]:
        """Those in which a task may have it."""
        if self.verb == "kick":
            return frozenset((BURIED,))
        return EVERY if self.verb != "bury" and self.delay_us is None else frozenset((READY, DELAYED))

    @property
    def moves(self) -> bool:
        """True if it may write payloads anew."""
        return self.into is not None or self.edge is not None or self.verb == "kick" or self.delay_us == 0

    def edited(self, record: Record, now_us: int) -> Record:
        """The task with the new options. One that waits for a group keeps its delay, and lives on."""
        new = record if self.pri is None else replace(record, pri=self.pri)
        if self.limits is not None:
            extra = replace(record.extra or Extra(), **self.limits)
            new = replace(new, extra=None if extra == Extra() else extra)
        if self.delay_us is None or waits(record) or not (self.delay_us or record.state == DELAYED):
            return new
        until_us = later(now_us, self.delay_us)
        longer_us = until_us - begins_us(record, now_us)
        lives_us = NEVER_US if record.expires_us == NEVER_US else later(record.expires_us, longer_us)
        return replace(new, state=DELAYED, until_us=until_us, expires_us=lives_us)


def waits(record: Record) -> bool:
    return record.extra is not None and bool(record.extra.waits)


def begins_us(record: Record, now_us: int) -> int:
    """The time at which the task is, or was, ready: its ttl counts from there."""
    return max(now_us, record.until_us) if record.state == DELAYED else now_us


class Selection(NamedTuple):
    where: Where
    edit: Edit


def selection_of(shape: Shape, where: Any, options: Any, verb: Any) -> Selection:
    """Raises: InvalidArgument, UnsupportedOption."""
    filters, edit = where_of(shape, where), _edit_of(shape, options, verb)
    if not filters.states & edit.states:
        names = " or ".join(name for name, state in STATES.items() if state in edit.states)
        got = where.get("state", "buried")
        raise InvalidArgument(name="the filter state", wanted=f"{names} for this change", got=got)
    return Selection(replace_fields(filters, states=filters.states & edit.states), edit)


def where_of(shape: Shape, where: Any, *, taken: bool = False) -> Where:
    """The filters; `taken`: of tasks in any state. Raises: InvalidArgument, UnsupportedOption."""
    if not isinstance(where, Mapping):
        raise WrongType(name="where", wanted=f"filters named {NAMES}", got=where)
    given: dict[str, Any] = {"states": EVERY | {TAKEN}} if taken else {}
    headers: dict[str, str] = {}
    data: list[tuple[Sequence[str], Any]] = []
    for name, value in where.items():
        first, *path = name.split(".") if isinstance(name, str) else [""]
        if first == "headers":
            texts = {name[len("headers.") :]: value} if path else value
            headers |= _checked_headers(texts)
        elif first == "data":
            data.append((path, value))
        elif not path and first in SOUGHT:
            continue
        elif path or first not in _CHECKS:
            raise InvalidArgument(name="where", wanted=f"filters named {NAMES}", got=name)
        elif taken and first == "state" and value == "taken":
            given["states"] = frozenset((TAKEN,))
        else:
            given |= _CHECKS[first](shape, value)
    if "error" in given:
        if BURIED not in given.get("states", EVERY):
            raise InvalidArgument(name="the filter state", wanted="buried beside a class", got=where["state"])
        given["states"] = frozenset((BURIED,))
    if data:
        shape.codec.require()
    return Where(**given, by=filters_among(where), headers=headers, data=data)


def _checked_headers(texts: Any) -> dict[str, str]:
    if not isinstance(texts, Mapping) or not all(isinstance(text, str) for text in (*texts, *texts.values())):
        raise InvalidArgument(name="the filter headers", wanted="texts by name", got=texts)
    return dict(texts)


def _checked_state(_: Shape, state: Any) -> dict[str, Any]:
    if not isinstance(state, str) or state not in STATES:
        wanted = "ready, delayed or buried; taken in a search: no change changes a taken task"
        raise InvalidArgument(name="the filter state", wanted=wanted, got=state)
    return {"states": frozenset((STATES[state],))}


def _checked_key(shape: Shape, key: Any) -> dict[str, Any]:
    shape.kind.require("key")
    return {"key": key_bytes(key, "the filter key")}


def _checked_id(_: Shape, ids: Any) -> dict[str, Any]:
    found = ids if isinstance(ids, list | tuple) else [ids]
    if not 0 < len(found) <= limits.BATCH_ITEMS_MAX:
        wanted = f"an id, or a list of 1 to {limits.BATCH_ITEMS_MAX:,}"
        raise InvalidArgument(name="the filter id", wanted=wanted, got=ids)
    return {"ids": frozenset(map(id_of, found))}


def _checked_age(_: Shape, seconds: Any) -> dict[str, Any]:
    return {"older_than_us": round(checked_seconds("the filter older_than", seconds) * 1_000_000)}


def _checked_class(_: Shape, error: Any) -> dict[str, Any]:
    most = limits.FAILURE_MESSAGE_BYTES_MAX
    return {"error": "" if error == "" else class_of(checked_text("the filter class", error, most))}


_CHECKS: Mapping[str, Callable[[Shape, Any], dict[str, Any]]] = {
    "state": _checked_state,
    "id": _checked_id,
    "key": _checked_key,
    "older_than": _checked_age,
    "class": _checked_class,
}


def _edit_of(shape: Shape, options: Any, verb: Any) -> Edit:
    if (options is None) == (verb is None):
        raise InvalidArgument(name="do", wanted="a verb, or None beside `set`", got=verb)
    if verb is not None:
        if not isinstance(verb, str) or verb not in EDGES:
            raise InvalidArgument(name="do", wanted=f"one of {', '.join(EDGES)}", got=verb)
        return Edit(verb)
    if not isinstance(options, Mapping) or not options or not {*options} <= {*OPTIONS}:
        raise InvalidArgument(name="set", wanted=f"some of {', '.join(OPTIONS)}, by name", got=options)
    if "queue" in options:
        return Edit(into=_checked_other(shape, options))
    given: dict[str, Any] = {}
    if "pri" in options:
        shape.kind.require("pri")
        given["pri"] = checked_pri("the new pri", options["pri"])
    if "delay" in options:
        shape.kind.require("delay")
        given["delay_us"] = round(checked_seconds("the new delay", options["delay"]) * 1_000_000)
    if "limits" in options:
        given["limits"] = _checked_limits(shape, options)
    return Edit(**given)


def _checked_other(shape: Shape, options: Mapping[str, Any]) -> str:
    if len(options) > 1:
        raise InvalidArgument(name="set", wanted="queue alone, or other options", got=options)
    name = checked_name(options["queue"])
    if name == shape.name:
        raise InvalidArgument(name="the new queue", wanted="another queue", got=name)
    return name


def _checked_limits(shape: Shape, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return asking("limits")({"limits": options["limits"]}, shape.kind, shape.settings)
    except InvalidArgument as error:
        raise InvalidArgument(name="the new limits", wanted=error.wanted, got=options["limits"]) from None


EDGES: Mapping[str, Edge] = {
    "kick": edges.kick,
    "bury": edges.bury,
    "cancel": edges.cancel,
    "delete": edges.delete,
}


# A step.


class Onward(Elsewhere):
    """Another queue, for tasks that keep their delay, their ttr and the rest of their ttl there. Failures of
    waiting tasks count there; a buried one begins anew, as at a kick.
    """

    now_us = 0

    @classmethod
    def at(cls, change: Change, database: Database, name: str) -> "Onward":
        """As `find`. Raises: InvalidArgument for a kind that lacks an option of these tasks, too."""
        found = cls.find(change, database, name, "the new queue")
        ours, theirs = change.shape.kind, found._shape.kind
        kept = [option for option in KEPT_BY_A_MOVE if ours.supports(option)]
        if not all(map(theirs.supports, kept)) or theirs.supports("key") > ours.supports("key"):
            keyless = "" if ours.supports("key") else " and without task keys"
            wanted = f"of a kind with {', '.join(kept) or 'no options'}{keyless}, as {ours.name!r} is"
            raise InvalidArgument(name="the new queue", wanted=wanted, got=f"{name} ({theirs.name})")
        found.now_us = change.now_us
        return found

    def _draft(self, ours: Shape, record: Record, payload: bytes) -> Draft:
        ready_us = begins_us(record, self.now_us)
        ttl_us = NEVER_US if record.expires_us == NEVER_US else record.expires_us - ready_us
        draft = super()._draft(ours, record, payload)
        counted = 0 if record.state == BURIED else record.failures_counted
        draft = replace(draft, failures_counted=counted)
        return replace(draft, ttl_us=ttl_us, ttr_us=record.ttr_us, delay_us=ready_us - self.now_us)


class Seen(NamedTuple):
    """A stored task: its place in a walk, its partition, and its record; None if that cannot be read."""

    place: bytes
    partition: int
    record: Record | None


def next_tasks(changes: Sequence[Change], after: bytes, most: int) -> tuple[list[Seen], bool]:
    """The next tasks by their ids, in any state; true if they are the last.

    The partition in which the walk is gives `most` tasks, the others together as many: they have few of
    these ids, and the walk goes only as far as all of them have been read.
    Reads: by snapshot.
    """
    home, asked = after[1] if len(after) > 1 else 0, []
    for number, change in enumerate(changes):
        few = most if number == home or len(changes) == 1 else max(1, most // len(changes))
        start = change.shape.keys.tasks.start + (after + b"\x00" if after else b"")
        asked.append((few, change.tr.snapshot.get_range(start, change.shape.keys.tasks.stop, limit=few)))
    changes[0].require_queue()  # after the reads are sent: no round trip of its own
    found, ends = list[Seen](), list[bytes]()
    for number, (few, range_) in enumerate(asked):
        prefix, rows = len(changes[number].shape.keys.tasks.start), range_.to_list()
        places = [bytes(row.key)[prefix:] for row in rows]
        found += [Seen(at, number, sound_record(row.value, at)) for at, row in zip(places, rows, strict=True)]
        ends += places[-1:] if len(rows) == few else []
    last = min(ends, default=None)
    return sorted(
        (seen for seen in found if last is None or seen.place <= last), key=itemgetter(0)
    ), last is None


def candidates(changes: Sequence[Change], where: Where, after: bytes, most: int) -> tuple[list[Seen], bool]:
    """The next tasks by their ids: of a list, a unique key or a group, or all. True if they are the last.

    Reads: by snapshot.
    """
    if not where.names_tasks:
        return next_tasks(changes, after, most)
    found = sorted(where.ids) or where.by[0].ids(changes[0], after, most)
    ids = [id_ for id_ in found if id_ > after][:most]
    changes[0].require_queue()  # asked with the index: no round trip of its own
    homes = _homes_of(changes, ids)
    return seen_at(changes, [*zip(ids, homes, ids, strict=True)]), len(ids) < most


def _homes_of(changes: Sequence[Change], ids: Sequence[bytes]) -> list[int]:
    """The partition of each of these tasks."""
    if len(changes) == 1:
        return [0] * len(ids)
    asked = [changes[0].tr.snapshot.get(changes[0].shape.shared.moved(id_)) for id_ in ids]
    numbers = [
        moved.value[-1] if moved.present() else partition_of(id_)
        for id_, moved in zip(ids, asked, strict=True)
    ]
    return [min(number, len(changes) - 1) for number in numbers]


def seen_at(changes: Sequence[Change], places: Sequence[tuple[bytes, int, bytes]]) -> list[Seen]:
    """The tasks of these places, partitions and ids; an empty id stands for a task to pass over."""
    asked = [
        changes[number].tr.snapshot.get(changes[number].shape.keys.task(id_))
        for _, number, id_ in places
        if id_
    ]
    values = iter(asked)
    return [
        Seen(place, number, sound_record(next(values).value, id_) if id_ else None)
        for place, number, id_ in places
    ]


@dataclass
class Step:
    """One transaction of a walk: the part behind `so_far.after`, which looks at `most` tasks at most."""

    selection: Selection
    database: Database
    so_far: ChangedTasks
    most: int
    dry_run: bool
    fills: bool
    """True if it moves as many tasks as the other queue has room for; otherwise all, or none."""
    few: int = field(default_factory=lambda: limits.VERB_BATCH)
    """The number of tasks that the next attempt changes at most."""
    shows: bool = False
    """True if it reads the data of all that match."""

    def __call__(self, changes: Sequence[Change]) -> ChangedTasks:
        """Return how far the walk has come.

        Reads: by snapshot tasks, and as many payloads as a page has; serialisably those that it changes.
        Raises: as Onward.at; QueueFull if the other queue has no room.
        """
        few, self.few = self.few, max(1, self.few // 2)
        into = self.selection.edit.into
        onward = None if into is None else Onward.at(changes[0], self.database, into)
        after = place_bytes(self.so_far.after) or b""
        rows, is_last = candidates(changes, self.selection.where, after, self.most)
        looked_at, chosen = self.choose(changes, rows, few, onward)
        changed = 0 if self.dry_run else self._changed(changes, chosen, onward)
        is_end = is_last and looked_at == len(rows)
        return ChangedTasks(
            self.so_far.looked_at + looked_at,
            self.so_far.matched + len(chosen),
            self.so_far.changed + changed,
            None if is_end else place_text(rows[looked_at - 1].place),
            self._examples(changes, chosen),
        )

    def choose(
        self, changes: Sequence[Change], rows: Sequence[Seen], few: int, onward: Onward | None
    ) -> tuple[int, list[Chosen]]:
        """The number of rows that were looked at, and the tasks among them that match."""
        (where, edit), now_us = self.selection, changes[0].now_us
        found = [
            (at, Chosen(row.partition, row.record))
            for at, row in enumerate(rows)
            if row.record is not None and where.matches(row.record, now_us)
        ]
        looked_at = len(rows)
        if where.data or self.shows:
            read = within_bytes([one.record.size_bytes for _, one in found])
            looked_at = found[read][0] if read < len(found) else looked_at
            found = self._with_data(changes, found[:read]) if where.data else found[:read]
        if onward is not None and self.fills:
            # Without room for one, its put tells so.
            few = max(1, onward.room(changes[0].tr, few))
        few = _few_enough(found, few, edit.moves)
        looked_at = found[few][0] if few < len(found) else looked_at
        return looked_at, [one for _, one in found[:few]]

    def _with_data(
        self, changes: Sequence[Change], found: Sequence[tuple[int, Chosen]]
    ) -> list[tuple[int, Chosen]]:
        asked = []
        for at, one in found:
            change = changes[one.partition]
            payload = ask_payload(change.tr, change.shape.keys, one.record)
            asked.append((at, one, partial(shown, change.shape.codec, payload)))
        return [(at, one) for at, one, data in asked if self.selection.where.matches_data(data())]

    def _changed(self, changes: Sequence[Change], chosen: Sequence[Chosen], onward: Onward | None) -> int:
        changed = 0
        for number, records in by_partition(sorted(chosen, key=attrgetter("partition"))):
            # They were read by snapshot: from here on, another change of them aborts this one.
            for record in records:
                changes[number].tr.add_read_conflict_key(changes[number].shape.keys.task(record.id))
            if onward is None:
                changed += self._apply(changes[number], records)
        if onward is not None:
            return onward.move(changes, [one for one in chosen if not waits(one.record)])
        return changed

    def _apply(self, change: Change, records: Sequence[Record]) -> int:
        edit = self.selection.edit
        if edit.verb is not None:
            return len((edit.edge or EDGES[edit.verb])(change, records))
        pairs = [(record, edit.edited(record, change.now_us)) for record in records]
        pairs = [(old, new) for old, new in pairs if old != new]
        if pairs:
            stored = change.move([old for old, _ in pairs], [new for _, new in pairs])
            edges.due(
                change, [new for new in stored if new.state == DELAYED and new.until_us <= change.now_us]
            )
            change.count("other")  # a task may be due, or startable, earlier
        return len(pairs)

    def _examples(self, changes: Sequence[Change], chosen: Sequence[Chosen]) -> tuple[Task, ...]:
        examples = self.so_far.examples
        few = chosen[: limits.EXAMPLES - len(examples)] if self.dry_run else ()
        for one in few[: within_bytes([one.record.size_bytes for one in few])]:
            shape = changes[one.partition].shape
            examples += (*shown_tasks(changes[0].tr, shape.keys, shape.codec, [one.record]),)
        return examples


def _few_enough(found: Sequence[tuple[int, Chosen]], few: int, moves: bool) -> int:
    """The number of tasks that one transaction changes: `few`, and limits.MOVED_BYTES_MAX, or one larger."""
    size_bytes = 0
    for count, (_, one) in enumerate(found[:few]):
        size_bytes += moved_bytes(one.record) if moves else 0
        if count and size_bytes > limits.MOVED_BYTES_MAX:
            return count
    return min(few, len(found))


# A walk.


def _has_more(before: ChangedTasks, found: ChangedTasks) -> bool:
    return found.changed > before.changed


def changed(
    queue: TaskHandle,
    target: DatabaseOrTransaction,
    selection: Selection,
    so_far: ChangedTasks,
    look: int | None,
    told: Callable[[ChangedTasks], object] | None,
    *,
    dry_run: bool,
) -> ChangedTasks:
    """Run steps up to the end, or until `look` tasks have been looked at."""
    database, name = queue._of(target), selection.edit.verb or "change"
    while True:
        run = partial(queue._see_all, target) if dry_run else partial(queue._once_in_all, target, name)
        if not dry_run:
            run = partial(run, wrote=partial(_has_more, so_far))
        left = limits.LOOKED_THROUGH if look is None else look - so_far.looked_at
        step = partial(Step, selection, database, so_far, min(left, limits.LOOKED_THROUGH))
        alone = not is_transaction(target)
        if not alone:
            _require_whole(queue._see_all(target, step(dry_run=True, fills=False)), look)
        so_far = in_halves(run, step(dry_run=dry_run, fills=alone and not dry_run))
        if told is not None:
            told(so_far)
        if so_far.after is None or so_far.looked_at == look:
            return so_far
        target = at_pace(target, "background")


def in_halves(run: Callable[[Any], T], step: Any) -> T:
    """Tasks with long keys and many limits may be too much for one transaction: then half of them follow."""
    while True:
        is_one = step.few == 1
        try:
            return run(step)
        except engine_errors() as error:
            if error.code != TRANSACTION_TOO_LARGE or is_one:
                raise


def _require_whole(found: ChangedTasks, look: int | None) -> None:
    """Raises: TooMuchForOneTransaction if one transaction can only do the first part, `found`."""
    if found.after is not None and found.looked_at != look:
        most = limits.VERB_BATCH if found.matched == limits.VERB_BATCH else found.looked_at
        raise too_many(most + 1, most)


def begin(after: Any) -> ChangedTasks:
    try:
        is_place = after is None or bool(place_bytes(after))
    except InvalidArgument:
        is_place = False
    if not is_place:
        raise InvalidArgument(name="after", wanted="None, or the `after` of an earlier answer", got=after)
    return ChangedTasks(after=after)


def look_of(selection: Selection, look: Any) -> int | None:
    """The number of tasks at which a call looks; without a filter of data, all."""
    if look is not None:
        return checked_count("look", look)
    return limits.SEARCHED_TASKS if selection.where.data else None
