"""The options of a put and of a queue, each once: its check, and its words in help texts; and kinds of queue.

The signatures of `TaskQueue.put` and `create` name the options too, for type checkers and pages. The command
line makes its options of these two classes. A schedule stores the first one, the definition of a queue the
second.

Kinds of task queue: a discipline, and the options that its tasks may have. A kind is data, registered once
per process under its name. The definition of a queue stores the options it was created with, so every process
uses the same ones.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import partial
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import msgspec
from fdb import tuple as layer

from fdbqueue import tasks as late
from fdbqueue.core import limits
from fdbqueue.core.arguments import (
    WHOLE_MAX,
    checked_count,
    checked_delay,
    checked_function,
    checked_items,
    checked_positive,
    checked_span,
    checked_text,
    checked_whole,
    is_number,
)
from fdbqueue.core.arguments import checked_seconds as checked_pause
from fdbqueue.core.arguments import key_bytes as key_bytes
from fdbqueue.core.codec import checked_codec
from fdbqueue.core.errors import (
    DefinitionUnreadable,
    InvalidArgument,
    KindExists,
    UnknownKind,
    UnsupportedOption,
)
from fdbqueue.core.partitions import Plan, checked_partitions, first_plan
from fdbqueue.core.registry import Definition, require_options
from fdbqueue.tasks.feature import ASKED, OF_QUEUES, asking
from fdbqueue.tasks.stored.discipline import Discipline, Fifo, Priority
from fdbqueue.tasks.stored.records import NEVER_US, Extra, TaskKeys, checked_headers

UNIQUE_OPTIONS = frozenset({"unique", "scope", "on_conflict", "debounce_max"})
"""The options of a put about its unique key."""
OF_ONE_TASK = UNIQUE_OPTIONS | {"after", "waits"}
"""Options that a put of several tasks refuses."""
QUEUED, UNFINISHED = "queued", "unfinished"
CHARGES = ("cost", "time")


GROWTH_MAX = 1_000.0
"""The bound of `growth`: 64 steps of it stay far below the largest float."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay of `first_s` after the first failure, and `growth` times as long after each further one.

    It is `cap_s` at most. A task waits for a random part of it, between a half and the whole, so that tasks
    that failed together are not ready again together. Raises InvalidArgument.
    """

    first_s: float = 1.0
    growth: float = 2.0
    cap_s: float = 600.0

    def __post_init__(self) -> None:
        checked_pause("first_s", self.first_s)
        checked_pause("cap_s", self.cap_s)
        if not is_number(self.growth) or not 1 <= self.growth <= GROWTH_MAX:
            raise InvalidArgument(name="growth", wanted=f"a number from 1 to {GROWTH_MAX:g}", got=self.growth)
        if self.cap_s < self.first_s:
            raise InvalidArgument(name="cap_s", wanted=f"first_s ({self.first_s:g}) at least", got=self.cap_s)

    def __str__(self) -> str:
        """As the command line takes it, with the growth if that is another one."""
        growth = "" if self.growth == 2 else f", times {self.growth:g}"
        return f"{self.first_s:g},{self.cap_s:g}{growth}"

    def delay_s(self, failures: int, random: float) -> float:
        """Return the delay after `failures` failures in a row; `random` is uniform in [0, 1).

        Raises InvalidArgument.
        """
        checked_whole("failures", failures, 0)
        checked_pause("random", random)
        steps = min(max(failures, 1) - 1, 64)
        whole = min(self.first_s * self.growth**steps, self.cap_s)
        return whole * (0.5 + random / 2)


def checked_backoff(name: str, backoff: Any) -> Backoff:
    if not isinstance(backoff, Backoff):
        raise InvalidArgument(name=name, wanted="fdbqueue.Backoff", got=backoff)
    return backoff


NO_BOUND = -1
"""The stored form of inf attempts, which JSON cannot carry."""


def checked_attempts(name: str, attempts: Any) -> float:
    if isinstance(attempts, float) and attempts == inf:
        return attempts
    try:
        return checked_count(name, attempts, limits.ATTEMPTS_MAX)
    except InvalidArgument:
        wanted = f"a whole number from 1 to {limits.ATTEMPTS_MAX}, or inf for no bound"
        raise InvalidArgument(name=name, wanted=wanted, got=attempts) from None


def stored_attempts(name: str, attempts: Any) -> int:
    checked = checked_attempts(name, attempts)
    return NO_BOUND if checked == inf else int(checked)


def given_attempts(stored: int | None) -> float | None:
    """The caller's form of stored attempts."""
    return inf if stored is not None and stored < 1 else stored


class OnConflict(StrEnum):
    """The effect of a put while another task has its unique key."""

    SKIP = "skip"
    REPLACE = "replace"
    DEBOUNCE = "debounce"


class Option(NamedTuple):
    check: Callable[[str, Any], Any]
    """Makes the stored form of a value, given the name of the option. Raises: InvalidArgument."""
    metavar: str
    """Empty for an option with choices."""
    help: str
    """The help text; of a put, for each task of a schedule."""
    of_put: str = ""
    """The help text for `put`, where it is another one."""


def _options_of(options: type[Any]) -> Mapping[str, Option]:
    """The options that a class declares, by the names of its fields."""
    hints = get_type_hints(options, include_extras=True).items()
    return {name: Option(*hint.__metadata__) for name, hint in hints if hasattr(hint, "__metadata__")}


checked_seconds = partial(checked_positive, unit="seconds")
checked_word = partial(checked_text, bytes_max=limits.SCHEDULE_EXPRESSION_BYTES_MAX)
checked_pri = partial(checked_whole, low=0, high=limits.PRIORITY_MAX)
checked_units = partial(checked_count, high=limits.UNITS_MAX)
checked_concurrency = partial(checked_count, high=limits.KEY_CONCURRENCY_MAX)


def packed(name: str, key: Any) -> bytes:
    return key_bytes(key, name)


def stored_delay(_: str, delay: Any) -> float:
    return checked_delay(delay)


def checked_scope(name: str, scope: Any) -> str | float:
    return scope if isinstance(scope, str) else checked_seconds(name, scope)


def as_it_is(_: str, value: Any) -> Any:
    """For the names of limits, which are checked together."""
    return value


_KEPT = "results are kept for S seconds"
_UNLESS = "none if a task has KEY, as JSON or text"
_SCOPE = "of KEY: queued, unfinished or seconds"
_LATEST = "of debounce: ready S seconds after"
_BURIED = "failures before burial, or inf"
_PAUSE = "after a failure: S seconds, doubled, CAP at most"


class PutOptions(msgspec.Struct, frozen=True, array_like=True):
    """The options of a put as a schedule stores them: spans in seconds, keys packed. Append fields with a
    default; never reorder.
    """

    ttl: Annotated[float | None, checked_span, "S", "a task lives S seconds", "they live S seconds"] = None
    ttr: Annotated[float | None, checked_span, "S", "each lease lasts S seconds"] = None
    pri: Annotated[int | None, checked_pri, "N", "the lowest is taken first"] = None
    delay: Annotated[float, stored_delay, "S", "ready S seconds after its put", "ready in S seconds"] = 0
    key: Annotated[bytes | None, packed, "KEY", "the task key, as JSON or text"] = None
    cost: Annotated[int | None, checked_units, "N", "each counts as N tasks of its key"] = None
    headers: Annotated[dict[str, str] | None, checked_headers, "NAME=TEXT", "a header; repeatable"] = None
    result_ttl: Annotated[float | None, checked_seconds, "S", _KEPT, f"their {_KEPT}"] = None
    unique: Annotated[bytes | None, packed, "KEY", f"put {_UNLESS}", f"make {_UNLESS}"] = None
    scope: Annotated[str | float, checked_scope, "SCOPE", _SCOPE, f"{_SCOPE} [unfinished]"] = UNFINISHED
    on_conflict: Annotated[str, checked_word, "", "[skip]", "of --unique: if a task has KEY [skip]"] = (
        OnConflict.SKIP.value
    )
    debounce_max: Annotated[
        float | None, checked_seconds, "S", f"{_LATEST} a put", f"{_LATEST} the first put"
    ] = None
    limits: Annotated[tuple[str, ...] | None, as_it_is, "NAME", "a limit; repeatable"] = None
    limit_keys: Annotated[dict[str, bytes] | None, as_it_is, "NAME KEY", "one more limit, for KEY"] = None
    """For a caller, these are a part of `limits`."""
    attempts: Annotated[int | None, stored_attempts, "N", _BURIED] = None
    backoff: Annotated[Backoff | None, checked_backoff, "S[,CAP]", _PAUSE] = None

    @classmethod
    def named(cls) -> list[str]:
        return [name for name in cls.__struct_fields__ if name != "limit_keys"]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "PutOptions":
        """The stored form of options; None is the default. It does not ask for the kind of the queue.

        Raises: UnsupportedOption, InvalidArgument.
        """
        for name in given:
            if name not in cls.named():
                raise UnsupportedOption(kind="a schedule", option=f"the option {name!r}")
        given = {name: value for name, value in given.items() if value is not None}
        stored = {name: PUT_OPTIONS[name].check(name, value) for name, value in given.items()}
        if "limits" in given:
            stored["limits"], keys = late.limits.rule.checked_named("limits", given["limits"])
            stored["limit_keys"] = keys or None
        if "unique" not in stored and UNIQUE_OPTIONS & set(stored):
            raise InvalidArgument(name="unique", wanted="a unique key for these options", got=None)
        return cls(**stored)

    def given(self) -> dict[str, Any]:
        """The options that differ from their default, as a caller gives them."""
        usual, names = PutOptions(), self.__struct_fields__
        given = {name: value for name in names if (value := getattr(self, name)) != getattr(usual, name)}
        for name in {"key", "unique"} & set(given):
            given[name] = layer.unpack(given[name])[0]
        if "attempts" in given:
            given["attempts"] = given_attempts(given["attempts"])
        keys = given.pop("limit_keys", None)
        if keys and self.limits:
            keyed = {name: layer.unpack(key)[0] for name, key in keys.items()}
            given["limits"] = {name: keyed.get(name) for name in self.limits}
        return given


def stored_span(name: str, seconds: Any) -> float | None:
    """The span, or None for ever, which JSON can carry. Raises: InvalidArgument."""
    checked = checked_span(name, seconds)
    return None if checked >= limits.SPAN_MAX_S else checked


def stored_retain_s(name: str, seconds: Any) -> float:
    retain_s = checked_seconds(name, seconds)
    if retain_s >= limits.SPAN_MAX_S:
        wanted = "less than a hundred years, or None to keep no ended tasks"
        raise InvalidArgument(name=name, wanted=wanted, got=seconds)
    return retain_s


def stored_charge(name: str, charge: Any) -> str | None:
    if charge not in CHARGES:
        raise InvalidArgument(name=name, wanted="'cost' or 'time'", got=charge)
    return None if charge == "cost" else "time"


def stored_plan(_: str, partitions: Any) -> Plan | None:
    return first_plan(checked_partitions(partitions))


def checked_flag(name: str, flag: Any) -> bool:
    if not isinstance(flag, bool):
        raise InvalidArgument(name=name, wanted="True or False", got=flag)
    return flag


def stored_capacity(name: str, capacity: Any) -> int | None:
    return checked_whole(name, capacity, 0, WHOLE_MAX) or None


def packed_weights(name: str, weights: Any) -> dict[str, int]:
    if not isinstance(weights, Mapping) or len(weights) > limits.WEIGHTS_MAX:
        wanted = f"at most {limits.WEIGHTS_MAX} keys with their weights"
        raise InvalidArgument(name=name, wanted=wanted, got=weights)
    return {key_bytes(key).hex(): checked_units(name, weight) for key, weight in weights.items()}


@dataclass(frozen=True)
class Settings:
    """The options of a queue; spans in seconds, None for ever."""

    ttl: Annotated[float | None, stored_span, "S", "a task lives S seconds [for ever]"] = None
    ttr: Annotated[float | None, stored_span, "S", "a lease lasts S seconds [for ever]"] = None
    pri: Annotated[int, checked_pri, "N", "of a task without one [0]"] = 0
    capacity: Annotated[int | None, stored_capacity, "N", "at most N tasks [no bound]"] = None
    key_concurrency: Annotated[int, checked_concurrency, "N", "N tasks of a key at a time [1]"] = 1
    weights: Annotated[Mapping[str, int] | None, packed_weights, "KEY=N", "tasks of KEY in a round [1]"] = (
        None
    )
    """By key, packed and in hexadecimal."""
    charge: Annotated[Literal["time"] | None, stored_charge, "", "what a key pays a task with [cost]"] = None
    partitions: Annotated[Plan | None, stored_plan, "N", "share its load among N parts [1]"] = None
    retain_s: Annotated[float | None, stored_retain_s, "S", "keep ended tasks for S seconds [none]"] = None
    """Time for which ended tasks are kept; None for none."""
    limits: Annotated[tuple[str, ...], as_it_is, "NAME", "a limit of its tasks; repeatable"] = ()
    """The names of the limits under which all of its tasks are taken."""
    task_limits: Annotated[tuple[str, ...], as_it_is, "NAME", "a limit that tasks may name"] = ()
    """The names of the limits that its tasks may name."""
    attempts: Annotated[int | None, stored_attempts, "N", f"{_BURIED} [its workers']"] = None
    """None: those of its workers; NO_BOUND for inf."""
    backoff: Annotated[Backoff | None, checked_backoff, "S[,CAP]", f"{_PAUSE} [its workers']"] = None
    result_ttl: Annotated[float | None, checked_seconds, "S", f"{_KEPT} [not kept]"] = None
    chronicle: Annotated[bool, checked_flag, "", "keep its figures by minute and by hour"] = False
    codec: Annotated[str, lambda _, codec: checked_codec(codec), "", "[json]"] = "json"
    temporary: str | None = None
    """The session that owns the contents, in hexadecimal."""
    settling: int | None = None
    """The number of the last change of options, while stored tasks are fitted to it (altering.py)."""
    of_features: Mapping[str, Any] = field(default_factory=dict)
    """Options of features (feature.py) that are no field above, by name."""

    def of_feature(self, option: str) -> Any:
        """The option of a feature; None if it was not given."""
        return self.of_features[option] if option in self.of_features else getattr(self, option, None)

    def to_options(self) -> dict[str, Any]:
        """The stored form, without those of UNSTORED that are not given."""
        # By name: msgspec sees no default of an object that it has made itself.
        options: dict[str, Any] = {name: msgspec.to_builtins(getattr(self, name)) for name in _FIELDS}
        options |= self.of_features
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in options.items()
            if value or name not in UNSTORED
        }


PUT_OPTIONS, QUEUE_OPTIONS = _options_of(PutOptions), _options_of(Settings)
UNSTORED: Mapping[str, Any] = {
    "retain_s": None,
    "charge": None,
    "partitions": 1,
    "limits": [],
    "task_limits": [],
    "attempts": None,
    "backoff": None,
    "result_ttl": None,
    "settling": None,
    "chronicle": False,
}
"""Options of which no definition stores the default, in the form of a caller."""
_FIELDS = [field.name for field in fields(Settings) if field.name != "of_features"]


def _of_features(options: Mapping[str, Any]) -> set[str]:
    """Those among the options that belong to features, and are no field of Settings."""
    return {option for known, _ in OF_QUEUES.values() for option in known if option in options}.difference(
        _FIELDS
    )


def _settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of Settings that have these options."""
    more = _of_features(options)
    plain = {name: value for name, value in options.items() if name not in more}
    return {**plain, "of_features": {name: options[name] for name in more}}


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings with these options of `create`, checked. Raises: InvalidArgument, UnknownCodec."""
    checks = {name: option.check for name, option in QUEUE_OPTIONS.items()}
    stored = {name: checks.get(name, as_it_is)(name, value) for name, value in given.items()}
    if stored.get("ttr", 0) is None and stored.get("ttl") is not None:
        stored["ttr"] = limits.SPAN_MAX_S  # for ever: a ttr that is not given is the queue's ttl
    return Settings(**_settings_of(stored))


def stored_settings(definition: Definition) -> Settings:
    """The options of a stored queue.

    Raises: DefinitionUnreadable for missing options, or those of a newer release.
    """
    given = _settings_of(definition.options)
    require_options(replace(definition, options=given), {*_FIELDS, "of_features"})
    try:
        return msgspec.convert(given, Settings)
    except msgspec.ValidationError as reason:
        raise DefinitionUnreadable(name=definition.name, reason=str(reason)) from reason


def owner_of(definition: Definition) -> bytes | None:
    """The session that a temporary queue belongs to. Raises: DefinitionUnreadable."""
    session = definition.options.get("temporary")
    try:
        return None if session is None else bytes.fromhex(session)
    except (TypeError, ValueError) as reason:
        raise DefinitionUnreadable(name=definition.name, reason=f"its session is none: {reason}") from reason


def as_given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Stored options in the caller's form: weights by their task keys, partitions as their number, inf
    attempts, and a Backoff.
    """
    given, weights, plan = dict(options), options.get("weights"), options.get("partitions")
    if options.get("attempts") is not None:
        given["attempts"] = given_attempts(options["attempts"])
    if options.get("backoff") is not None:
        given["backoff"] = msgspec.convert(options["backoff"], Backoff)
    if weights:
        given["weights"] = {layer.unpack(bytes.fromhex(key))[0]: n for key, n in weights.items()}
    if plan is not None:
        given["partitions"] = msgspec.convert(plan, Plan).count
    return given


MakeDiscipline = Callable[[TaskKeys, Mapping[str, Any]], Discipline]

TIMED = frozenset({"ttl", "ttr", "pri", "delay"})
NAMING = frozenset({"task_limits"})
BAG = frozenset({"ttl", "ttr", "delay"})
KEYED = frozenset({"key", "key_concurrency"})
FAIR = frozenset({"ttl", "ttr", "delay", "capacity", "key", "weights", "charge", "cost"})
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
    (stored/discipline.py). `options` names the options of its queues and tasks: "ttl", "ttr", "pri",
    "delay", "capacity", "key", "key_concurrency", "weights", "charge", "cost", "task_limits" (for a
    discipline that is a `Fifo`). With `ttl_ends_lease`, a lease ends with its task's ttl at the latest.
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
    return late.stored.keyed.Micro(keys, options)


def _fair(keys: TaskKeys, options: Mapping[str, Any]) -> Discipline:
    return (late.stored.charged.Charged if options.get("charge") else late.stored.keyed.Fair)(keys, options)


IN_ORDER_OF_ARRIVAL = "fifo"
"""The one kind whose next task is its oldest ready task."""
register_kind(IN_ORDER_OF_ARRIVAL, Fifo, NAMING)
register_kind("fifottl", Priority, TIMED | NAMING)
register_kind("limfifottl", Priority, {*TIMED, *NAMING, "capacity"})
register_kind("utube", _micro, KEYED)
register_kind("utubettl", _micro, TIMED | KEYED, ttl_ends_lease=False)
register_kind("fair", _fair, FAIR)
register_kind("bag", lambda keys, options: late.stored.discipline.Bag(keys, options), BAG)
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


OF_QUEUE = -1
"""Stands for the value of the queue."""


class Draft(msgspec.Struct, frozen=True):
    """A task before its put: its options resolved, its payload encoded. `pri`, `ttl_us` and `ttr_us` are
    OF_QUEUE if they are not given: the transaction of the put finds those of the queue.
    """

    data: Any
    payload: bytes
    pri: int
    key: bytes
    cost: int
    ttl_us: int
    ttr_us: int
    delay_us: int
    trace: bytes = b""
    """The trace context of its put (`records.packed_trace`)."""
    extra: Extra | None = None
    wish: Any = None
    """What its put wants of a stage, beside the fields of `extra` (feature.py)."""
    failures: int = 0
    """Number of its failed attempts in another queue, of a task that comes from there."""
    failures_counted: int = 0
    """Number of those that count here."""
    arrives: bool = False
    """True for a task from another queue, where its groups have counted it."""


def about_unique(unique: Any, **options: Any) -> dict[str, Any]:
    """The options of a put about its unique key. Raises: InvalidArgument without that key."""
    if unique is None:
        raise InvalidArgument(name="unique", wanted="a unique key for these options", got=None)
    return {"unique": unique, **options}


def drafted(kind: Kind, settings: Settings, data: Any, payload: bytes, options: Mapping[str, Any]) -> Draft:
    wait_us = delay_us(options.get("delay", 0))
    given = {name for name, value in options.items() if value is not None} - OF_ONE_TASK
    if options.get("pri") == 0:
        given.discard("pri")
    if wait_us == 0:
        given.discard("delay")
    for option in given.difference(ASKED):
        kind.require(option)
    if "cost" in given and settings.charge is not None:
        raise InvalidArgument(name="cost", wanted="left out: the queue charges time", got=options["cost"])
    # The queue's ttr, if none is given, is not shortened by a ttl given here: as in the reference.
    ttl, ttr = options.get("ttl"), options.get("ttr")
    pri = options.get("pri")
    wish, extra = _asked(kind, settings, options)
    return Draft(
        data=data,
        payload=payload,
        pri=OF_QUEUE if pri is None else checked_pri("pri", pri),
        cost=1 if options.get("cost") is None else checked_units("cost", options["cost"]),
        key=key_bytes(options.get("key")) if kind.supports("key") else b"",
        ttl_us=OF_QUEUE if ttl is None else span_us("ttl", ttl),
        ttr_us=OF_QUEUE if ttr is None else span_us("ttr", ttr),
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
