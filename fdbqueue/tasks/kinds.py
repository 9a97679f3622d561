"""Kinds of task queue: a discipline, and the options that its tasks may have.

A kind is data, registered once per process under its name. The definition of a queue stores the options it
was created with, so every process uses the same ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import msgspec
from fdb import tuple as layer

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import (
    WHOLE_MAX,
    checked_count,
    checked_delay,
    checked_items,
    checked_positive,
    checked_span,
    checked_text,
    checked_whole,
)
from fdbqueue.core.arguments import key_bytes as key_bytes
from fdbqueue.core.codec import checked_codec
from fdbqueue.core.deferred import checked_function
from fdbqueue.core.errors import (
    DefinitionUnreadable,
    InvalidArgument,
    KindExists,
    UnknownKind,
    UnsupportedOption,
)
from fdbqueue.core.partitions.plan import Plan
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import require_options
from fdbqueue.tasks.disciplines.discipline import Discipline, Fifo, Priority
from fdbqueue.tasks.feature import ASKED, OF_ONE_TASK, OF_QUEUES, asking
from fdbqueue.tasks.records.keys import NEVER_US, Extra, TaskKeys

MakeDiscipline = Callable[[TaskKeys, Mapping[str, Any]], Discipline]

TIMED = frozenset({"ttl", "ttr", "pri", "delay"})
NAMING = frozenset({"task_limits"})
BAG = frozenset({"ttl", "ttr", "delay"})
KEYED = frozenset({"key", "key_concurrency"})
FAIR = frozenset({"ttl", "ttr", "delay", "capacity", "key", "weights", "cost"})
OPTIONS = TIMED | KEYED | FAIR | NAMING
NOT_GIVEN = {"delay": 0} | dict.fromkeys(
    ("ttl", "ttr", "pri", "limits", "key", "cost", "headers", "result_ttl", "group")
)
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


@dataclass(frozen=True)
class Settings:
    """The options that a queue was created with; spans in seconds, None for ever."""

    ttl: float | None = None
    ttr: float | None = None
    pri: int = 0
    capacity: int | None = None
    key_concurrency: int = 1
    weights: Mapping[str, int] | None = None
    """By key, packed and in hexadecimal."""
    codec: str = "json"
    temporary: str | None = None
    """The session that owns the contents, in hexadecimal."""
    retain_s: float | None = None
    """Time for which ended tasks are kept; None for none."""
    partitions: Plan | None = None
    limits: tuple[str, ...] = ()
    """The names of the limits under which all of its tasks are taken."""
    task_limits: tuple[str, ...] = ()
    """The names of the limits that its tasks may name."""
    of_features: Mapping[str, Any] = field(default_factory=dict)
    """Options of features (feature.py) that are no field above, by name."""

    def of_feature(self, option: str) -> Any:
        """The option of a feature; None if it was not given."""
        return self.of_features[option] if option in self.of_features else getattr(self, option, None)

    def to_options(self) -> dict[str, Any]:
        """The stored form, without a `retain_s`, partitions and limits that are not given."""
        options = asdict(self)
        options |= options.pop("of_features")
        for name in ("limits", "task_limits"):
            if options[name]:
                options[name] = list(options[name])
            else:
                del options[name]
        if self.retain_s is None:
            del options["retain_s"]
        if self.partitions is None:
            del options["partitions"]
        else:
            options["partitions"] = msgspec.to_builtins(self.partitions)
        return options


_FIELDS = {field.name for field in fields(Settings)} - {"of_features"}


def _more_options() -> set[str]:
    """The options of features that are no field of Settings."""
    return {option for options, _ in OF_QUEUES.values() for option in options} - _FIELDS


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings with these options of `create`."""
    more = _more_options() & given.keys()
    plain = {name: value for name, value in given.items() if name not in more}
    return Settings(**plain, of_features={name: given[name] for name in more})


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


def kind_with(given: Settings) -> Kind:
    """The first kind of this package that has the options given, in the order above; fifo if none has."""
    options = _options_given(given)
    return next((kind for kind in _OWN if options <= kind.options), kind_named(IN_ORDER_OF_ARRIVAL))


def _options_given(given: Settings) -> set[str]:
    """The options that some kinds do not have."""
    default, some = Settings(), OPTIONS - {"delay", "key", "cost"}
    return {option for option in some if getattr(given, option) != getattr(default, option)}


def settings_for(kind: Kind, given: Settings) -> Settings:
    """`given`, checked, in stored form. Raises: UnsupportedOption, InvalidArgument, UnknownCodec."""
    for option in sorted(_options_given(given)):
        kind.require(option)
    ttl, ttr = _stored_span("ttl", given.ttl), _stored_span("ttr", given.ttr)
    if ttr is None and given.ttr is not None and ttl is not None:
        ttr = limits.SPAN_MAX_S  # for ever: a ttr that is not given is the queue's ttl
    checked_pri(given.pri)
    if given.capacity is not None:
        checked_whole("capacity", given.capacity, 0, WHOLE_MAX)
    checked_count("key_concurrency", given.key_concurrency, limits.KEY_CONCURRENCY_MAX)
    codec = checked_codec(given.codec)
    retain_s = None if given.retain_s is None else checked_retain_s(given.retain_s)
    capacity = given.capacity or None
    return replace(given, ttl=ttl, ttr=ttr, capacity=capacity, codec=codec, retain_s=retain_s)


def stored_settings(definition: Definition) -> Settings:
    """The options of a stored queue.

    Raises: DefinitionUnreadable for missing options, or those of a newer release.
    """
    of_features = {name: definition.options[name] for name in _more_options() & definition.options.keys()}
    plain = {name: value for name, value in definition.options.items() if name not in of_features}
    require_options(replace(definition, options=plain), _FIELDS)
    try:
        return msgspec.convert({**plain, "of_features": of_features}, Settings)
    except msgspec.ValidationError as reason:
        raise DefinitionUnreadable(name=definition.name, reason=str(reason)) from reason


def owner_of(definition: Definition) -> bytes | None:
    """The session that a temporary queue belongs to. Raises: DefinitionUnreadable."""
    session = definition.options.get("temporary")
    try:
        return None if session is None else bytes.fromhex(session)
    except (TypeError, ValueError) as reason:
        raise DefinitionUnreadable(name=definition.name, reason=f"its session is none: {reason}") from reason


def checked_retain_s(seconds: float) -> float:
    retain_s = checked_positive("retain_s", seconds, "seconds")
    if retain_s >= limits.SPAN_MAX_S:
        wanted = "less than a hundred years, or None to keep no ended tasks"
        raise InvalidArgument(name="retain_s", wanted=wanted, got=seconds)
    return retain_s


def _stored_span(name: str, seconds: float | None) -> float | None:
    """The span, or None for ever, which JSON can carry. Raises: InvalidArgument."""
    checked = limits.SPAN_MAX_S if seconds is None else checked_span(name, seconds)
    return None if checked >= limits.SPAN_MAX_S else checked


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
        pri=settings.pri if pri is None else checked_pri(pri),
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


def checked_pri(pri: Any) -> int:
    return checked_whole("pri", pri, 0, limits.PRIORITY_MAX)


def checked_units(name: str, number: Any) -> int:
    return checked_count(name, number, limits.UNITS_MAX)


def packed_weights(weights: Mapping[Any, int] | None) -> dict[str, int] | None:
    """Weights in stored form, checked. Raises: InvalidArgument."""
    if weights is None:
        return None
    if not isinstance(weights, Mapping) or len(weights) > limits.WEIGHTS_MAX:
        wanted = f"at most {limits.WEIGHTS_MAX} keys with their weights"
        raise InvalidArgument(name="weights", wanted=wanted, got=weights)
    return {key_bytes(key).hex(): checked_units("weights", weight) for key, weight in weights.items()}


def as_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options in the caller's form: weights by their task keys, partitions as their number."""
    given, weights, plan = dict(options), options.get("weights"), options.get("partitions")
    if weights:
        given["weights"] = {layer.unpack(bytes.fromhex(key))[0]: n for key, n in weights.items()}
    if plan is not None:
        given["partitions"] = msgspec.convert(plan, Plan).count
    return given
