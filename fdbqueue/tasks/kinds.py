"""Kinds of task queue: a discipline, and the options that its tasks may have.

A kind is data, registered once per process under its name. The definition of a queue stores the options it
was created with, so every process uses the same ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import (
    checked_delay,
    checked_function,
    checked_items,
    checked_positive,
    checked_span,
    checked_text,
)
from fdbqueue.core.arguments import key_bytes as key_bytes
from fdbqueue.core.errors import InvalidArgument, KindExists, UnknownKind, UnsupportedOption
from fdbqueue.tasks.disciplines.discipline import Discipline, Fifo, Priority
from fdbqueue.tasks.feature import ASKED, asking
from fdbqueue.tasks.options import (
    OF_ONE_TASK,
    UNIQUE_OPTIONS,
    PutOptions,
    Settings,
    checked_pri,
    checked_units,
    settings_of,
)
from fdbqueue.tasks.records.keys import NEVER_US, Extra, TaskKeys

MakeDiscipline = Callable[[TaskKeys, Mapping[str, Any]], Discipline]

TIMED = frozenset({"ttl", "ttr", "pri", "delay"})
NAMING = frozenset({"task_limits"})
BAG = frozenset({"ttl", "ttr", "delay"})
KEYED = frozenset({"key", "key_concurrency"})
FAIR = frozenset({"ttl", "ttr", "delay", "capacity", "key", "weights", "cost"})
OPTIONS = TIMED | KEYED | FAIR | NAMING
_OF_PUT = {name: getattr(PutOptions(), name) for name in PutOptions.named() if name not in UNIQUE_OPTIONS}
NOT_GIVEN = {**_OF_PUT, "group": None}
"""The options of a put that gives none."""


@dataclass(frozen=True)
class Kind:
    name: str
    discipline: MakeDiscipline
    options: frozenset[str]
    ttl_ends_lease: bool = True

    def supports(self, option: str) -> bool:
        return option in self.options

    def made(self, keys: TaskKeys, options: Mapping[str, Any]) -> Discipline:
        """The discipline of a queue. Raises: InvalidArgument if the registered function makes none."""
        discipline = self.discipline(keys, options)
        if not callable(getattr(discipline, "claim", None)):
            wanted = f"a function that makes a discipline, as that of the kind {self.name!r} must"
            raise InvalidArgument(name="discipline", wanted=wanted, got=discipline)
        return discipline

    def require(self, option: str) -> None:
        """Raises: UnsupportedOption, which names the kinds that have the option."""
        if option not in OPTIONS:
            raise InvalidArgument(name=option, wanted="an option of `put`", got=option)
        if option not in self.options:
            *first, last = [kind.name for kind in _kinds.values() if kind.supports(option)]
            told = f"A queue of kind {self.name!r} does not support the option {option!r}"
            able = f"{', '.join(first)} and {last} do" if first else f"{last} does"
            raise UnsupportedOption(f"{told}: {able}.", kind=self.name, option=f"the option {option!r}")


_kinds: dict[str, Kind] = {}


def register_kind(
    name: str, discipline: MakeDiscipline, options: Iterable[str], *, ttl_ends_lease: bool = True
) -> None:
    """Make `name` a kind for TaskQueue.create and open in this process.

    `discipline(keys, options)` makes the object that decides which task is next
    (disciplines/discipline.py). `options` names the options of its queues and tasks: "ttl", "ttr", "pri",
    "delay", "capacity", "key", "key_concurrency", "weights", "cost", "task_limits" (for a discipline that is
    a `Fifo`). With `ttl_ends_lease`, a lease ends with its task's ttl at the latest.
    Raises: KindExists; InvalidArgument for an unknown option, for a name that is not a text of 1 to
    limits.QUEUE_NAME_BYTES_MAX bytes, or for a discipline that cannot be called.
    """
    name = checked_text("name", name, limits.QUEUE_NAME_BYTES_MAX)
    if name in _kinds:
        raise KindExists(kind=name)
    given = checked_items("options", options)
    if not all(isinstance(option, str) and option in OPTIONS for option in given):
        raise InvalidArgument(name="options", wanted=f"some of {', '.join(sorted(OPTIONS))}", got=given)
    checked_function("discipline", discipline)
    _kinds[name] = Kind(name, discipline, frozenset(given), ttl_ends_lease)


def kind_named(name: str) -> Kind:
    try:
        return _kinds[name]
    except (KeyError, TypeError):
        raise UnknownKind(kind=name, known=", ".join(kind_names())) from None


def is_kind(name: str) -> bool:
    return name in _kinds


def kind_names() -> list[str]:
    return list(_kinds)


# A process imports the disciplines of the queues that it uses.
def _micro(keys: TaskKeys, options: Mapping[str, Any]) -> Discipline:
    return late.disciplines.micro.Micro(keys, options)


IN_ORDER_OF_ARRIVAL = "fifo"
"""The one kind whose next task is its oldest ready task."""
register_kind(IN_ORDER_OF_ARRIVAL, Fifo, NAMING)
register_kind("fifottl", Priority, TIMED | NAMING)
register_kind("limfifottl", Priority, {*TIMED, *NAMING, "capacity"})
register_kind("utube", _micro, KEYED)
register_kind("utubettl", _micro, TIMED | KEYED, ttl_ends_lease=False)
register_kind("fair", lambda keys, options: late.disciplines.fair.Fair(keys, options), FAIR)
register_kind("bag", lambda keys, options: late.disciplines.bag.Bag(keys, options), BAG)
_OWN = tuple(_kinds.values())


def settings_for(kind: str | None, given: Mapping[str, Any]) -> tuple[Kind, Settings]:
    """The kind, and the checked settings of a queue of it. Without a kind, it is the first one of this
    package that has the options given, in the order above; fifo if none has.

    Raises: UnknownKind, UnsupportedOption, InvalidArgument, UnknownCodec.
    """
    default = Settings()
    options = {name for name in OPTIONS & given.keys() if given[name] != getattr(default, name, None)}
    able = (one for one in _OWN if options <= one.options)
    known = next(able, kind_named(IN_ORDER_OF_ARRIVAL)) if kind is None else kind_named(kind)
    for option in sorted(options):
        known.require(option)
    return known, settings_of(given)


class Draft(msgspec.Struct, frozen=True):
    """A task before its put: its options resolved, its payload encoded."""

    data: Any
    payload: bytes
    pri: int
    key: bytes
    cost: int
    ttl_us: int
    ttr_us: int
    delay_us: int
    trace: bytes = b""
    """The trace context of its put (trace_context.py)."""
    extra: Extra | None = None
    wish: Any = None
    """What its put wants of a stage, beside the fields of `extra` (feature.py)."""
    failures: int = 0
    """Number of its failed attempts in another queue, of a task that comes from there; they do not count."""
    arrives: bool = False
    """True for a task from another queue, where its groups have counted it."""


def drafted(kind: Kind, settings: Settings, data: Any, payload: bytes, options: Mapping[str, Any]) -> Draft:
    wait_us = delay_us(options.get("delay", 0))
    given = {name for name, value in options.items() if value is not None} - OF_ONE_TASK
    if options.get("pri") == 0:
        given.discard("pri")
    if wait_us == 0:
        given.discard("delay")
    for option in given.difference(ASKED):
        kind.require(option)
    # The queue's ttr, if none is given, is not shortened by a ttl given here: as in the reference.
    ttl, ttr = options.get("ttl"), options.get("ttr")
    default_ttr = settings.ttl if settings.ttr is None else settings.ttr
    pri = options.get("pri")
    wish, extra = _asked(kind, settings, options)
    return Draft(
        data=data,
        payload=payload,
        pri=settings.pri if pri is None else checked_pri("pri", pri),
        cost=1 if options.get("cost") is None else checked_units("cost", options["cost"]),
        key=key_bytes(options.get("key")) if kind.supports("key") else b"",
        ttl_us=span_us("ttl", settings.ttl if ttl is None else ttl),
        ttr_us=span_us("ttr", default_ttr if ttr is None else ttr),
        delay_us=wait_us,
        extra=extra,
        wish=wish,
    )


def _asked(kind: Kind, settings: Settings, options: Mapping[str, Any]) -> tuple[Any, Extra | None]:
    """The wish of a put, and the parts of a record that few tasks have; None without any."""
    parts: dict[str, Any] = {}
    for option in ASKED:
        if options.get(option) is not None:
            parts |= asking(option)(options, kind, settings)
    return parts.pop("wish", None), Extra(**parts) if parts else None


def span_us(name: str, seconds: float | None) -> int:
    """Microseconds, 1 or more; NEVER_US for ever: None, a hundred years and more. Raises InvalidArgument."""
    return NEVER_US if seconds is None else whole_us(checked_span(name, seconds))


def increment_us(increment: float) -> int:
    """Microseconds, 1 or more; NEVER_US for a hundred years and more. Raises InvalidArgument."""
    return whole_us(checked_positive("increment", increment, "seconds"))


def whole_us(seconds: float) -> int:
    # 1 at least: a span of 0 would be over before it begins.
    return NEVER_US if seconds >= limits.SPAN_MAX_S else max(1, round(seconds * 1_000_000))


def delay_us(delay: float) -> int:
    """Microseconds from now; 0 for a delay that is over. Raises InvalidArgument."""
    return round(checked_delay(delay) * 1_000_000)


def later(time_us: int, span: int) -> int:
    """The time `span` after `time_us`; NEVER_US swallows everything."""
    return min(time_us + span, NEVER_US)
