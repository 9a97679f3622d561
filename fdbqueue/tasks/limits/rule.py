"""Keys of limits, and their values: the only file that builds or parses them; and the rule of a limit.

R is the root, and N is below R[17, name] for a limit of that name. R[16, name] has its rule, which
takes under the limit read serialisably. Keys are those of the tuple layer. The comment of a column has its
parts and its value, and behind the semicolon its readers.

All cells of a limit share one key, as one long number with 64 bits for each: an atomic add changes one of
them. A cell of a limit of slots counts the tasks that hold a slot of it. A cell of a limit of starts has the
time, in nanoseconds since the epoch, at which it is full of tokens (state.py). A limit of both has its tokens
in the cells of TOKENS, so an end, which does not read the rule, changes slots only. `id` is that of the
queue; tasks hold slots, and never tokens. `time` is in microseconds since the epoch. `key` is a byte string,
packed by the tuple layer; `lane` is that of parking.py.

A rule is the stored numbers of a limit. It is one of slots, one of starts, or one of both.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, NamedTuple

import msgspec
from fdb import tuple as layer

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_items, checked_positive, checked_text, key_bytes
from fdbqueue.core.columns import Table, below
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidArgument, LimitNotFound, LimitUnreadable
from fdbqueue.core.root_keys import LIMIT, LIMITED, RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.core.unreadable import DAMAGED

CELLS_MAX = 16
"""Cells of a limit: takes that use different cells do not conflict."""
NUMBER_BYTES = 8

N = Table()
CELLS = N.packed(0)  # CELLS_MAX numbers; takes under the limit, by snapshot
BELL = N.packed(1)  # grows with each slot that is free again, and each change; watches of takes that wait
GATE = N.packed(2, int)  # n, the number of a cell: never written; conflict keys of takes under a limit
HOLDER = N.packed(3, int, bytes)  # id, task: cell, queue, partition, session; explain, truncate, drop, verify
# A limit that counts each key apart (`per_key`) has these, too.
COUNT = N.packed(4, bytes)  # key: see state.py; takes and first puts of the key
OF_KEY = N.packed(5, bytes)  # key, and a row of those below
DUE = N.packed(6, int, bytes)  # time, key: empty; sweeps and takes: lanes that may open
WALK = N.packed(7)  # the last key that it has seen; sweeps: look at all keys again
TOTAL = N.packed(8)  # slots in use, of all keys; looks at the limit, its delete
KEY_GATE = N.packed(9, bytes)  # key: never written; conflict keys of takes of the key
OVER = N.packed(10, int, bytes)  # time, key: empty; sweeps: the row of the key may be over
# A limit of slots and starts has its tokens here.
TOKENS = N.packed(11)  # as CELLS of a limit of starts; takes under the limit, by snapshot
KEY_TOKENS = N.packed(12, bytes)  # key: as COUNT of a limit of starts; takes, ends and first puts of the key

# Rows of a key: 0, id, task as in HOLDER; 1, id, partition, lane of an open lane, for the start that exhausts
# the key; 2, id, partition, lane of a parked one, for the end that frees it.
KEY_HOLDER, OPEN, PARKED = range(3)
KEYED = CELLS_MAX
"""In place of a cell: the slot is one of the task's key."""

_BYTES, _END = b"\x01", b"\x00"
"""The tuple layer's code of a byte string, and its end."""
_NUMBERS: Sequence[bytes] = [layer.pack((number,)) for number in range(CELLS_MAX + 1)]
"""Packed once: each handle of a queue makes the keys of its limits."""


class Held(NamedTuple):
    """The value of a holder's key: the cell of its slot, and its queue, partition and session."""

    cell: int
    queue: str
    partition: int
    session: bytes


class LanePlace(NamedTuple):
    queue: int
    partition: int
    lane: bytes


encode_held = msgspec.msgpack.Encoder().encode
_decode_held = msgspec.msgpack.Decoder(Held).decode


def held_of(value: bytes) -> Held | None:
    try:
        return _decode_held(value)
    except DAMAGED:
        return None


def shown_key(key: bytes) -> Any:
    """The key as a task names it; the bytes themselves, if they are damaged."""
    try:
        return layer.unpack(key)[0]
    except (ValueError, IndexError, struct.error):
        return key


class LimitKeys:
    def __init__(self, root: bytes, name: str) -> None:
        self.name = name
        self.row: bytes = layer.pack((LIMIT, name), prefix=root)
        prefix: bytes = layer.pack((LIMITED, name), prefix=root)
        self._prefix, self.beside = prefix, below(prefix)
        self.cells, self.bell, self._holder = CELLS.start(prefix), BELL.start(prefix), HOLDER.start(prefix)
        self.walk, self.total = WALK.start(prefix), TOTAL.start(prefix)
        *self.gates, self.gate_of_all = (GATE.start(prefix) + number for number in _NUMBERS)
        self.holders, self.of_keys = HOLDER.all(prefix), OF_KEY.all(prefix)
        self.count, self.counts, self.key_gate = COUNT.key(prefix), COUNT.all(prefix), KEY_GATE.key(prefix)
        self.due, self.dues, self.dues_until = DUE.key(prefix), DUE.all(prefix), DUE.until(prefix)
        self.dues_of_tokens = slice(self.due(1, b""), self.dues.stop)
        """Those at 0 are of lanes that are left over."""
        self.over, self.overs, self.overs_until = OVER.key(prefix), OVER.all(prefix), OVER.until(prefix)
        self.key_holders = OF_KEY.under(prefix, KEY_HOLDER)
        self.tokens = TOKENS.start(prefix)
        self.key_tokens, self.keys_tokens = KEY_TOKENS.key(prefix), KEY_TOKENS.all(prefix)
        self.has_both = False
        """True if the rule had slots and starts when this process saw it last. It is advice: the next look
        asks for the tokens at once.
        """

    def note(self, rule: "Rule | None") -> None:
        """Remember the parts of a rule that this process has seen."""
        self.has_both = rule is not None and rule.has_both

    def _packed(self, *parts: Any) -> bytes:
        key: bytes = layer.pack(parts, prefix=self._prefix)
        return key

    # Of a key:

    def key_holder(self, key: bytes, queue: int, id_: bytes) -> bytes:
        return self._packed(OF_KEY, key, KEY_HOLDER, queue, id_)

    def lanes(self, key: bytes, side: int) -> slice:
        """The lanes of the key that are open, or parked: `side` is OPEN or PARKED."""
        return below(self._packed(OF_KEY, key, side))

    def lane(self, key: bytes, side: int, place: LanePlace) -> bytes:
        return self._packed(OF_KEY, key, side, *place)

    def parts_of(self, key: bytes) -> tuple[Any, ...]:
        """The parts of a key behind the name of the limit."""
        parts: tuple[Any, ...] = layer.unpack(key, prefix_len=len(self._prefix))
        return parts

    def holders_in(self, queue: int) -> slice:
        return below(self._of_queue(queue))

    def holder(self, queue: int, id_: bytes) -> bytes:
        return self._of_queue(queue) + _BYTES + id_.replace(b"\x00", b"\x00\xff") + _END

    def _of_queue(self, queue: int) -> bytes:
        return self._holder + _packed_queue(queue)

    def task_in(self, holder_key: bytes) -> tuple[int, bytes]:
        queue, id_ = layer.unpack(holder_key, prefix_len=len(self._holder))
        return queue, id_


@lru_cache(maxsize=256)
def _packed_queue(queue: int) -> bytes:
    """Kept, as each start and each end of a task needs it, and the tuple layer is slow."""
    packed: bytes = layer.pack((queue,))
    return packed


_CELL_BITS = 8 * NUMBER_BYTES
_CELLS = struct.Struct(f"<{CELLS_MAX}Q")
_ONES = [1 << (_CELL_BITS * cell) for cell in range(CELLS_MAX)]


def cells_bytes(numbers: Mapping[int, int]) -> bytes:
    """The value of these cells, and 0 in all others; also the operand of the atomic add of these numbers."""
    return _long(sum(number * _ONES[cell] for cell, number in numbers.items()))


def one_more_bytes(cells: Iterable[int]) -> bytes:
    """The operand of the atomic add of 1 for each of these cells; a cell may be there several times."""
    return _long(sum(map(_ONES.__getitem__, cells)))


def one_less_bytes(cells: Iterable[int]) -> bytes:
    return _long(-sum(map(_ONES.__getitem__, cells)))


def _long(total: int) -> bytes:
    return (total & ((1 << (_CELL_BITS * CELLS_MAX)) - 1)).to_bytes(NUMBER_BYTES * CELLS_MAX, "little")


def cells_of(value: bytes | None) -> list[int]:
    """The numbers of all cells; those of a damaged value as far as it goes."""
    sound = (value or b"")[: _CELLS.size].ljust(_CELLS.size, b"\x00")
    return list(_CELLS.unpack(sound))


_Whole = Annotated[int, msgspec.Meta(ge=0)]


class Rule(msgspec.Struct, frozen=True, array_like=True):
    """A limit of `slots`: that number of tasks runs at a time. Or one of starts: `rate` tokens come in
    `per_us`, a bucket has room for `burst` of them, and each start takes one. Or one of both. Append values
    to `more` (`Extra`).
    """

    slots: _Whole = 0
    rate: _Whole = 0
    per_us: _Whole = 0
    burst: _Whole = 0
    per_key: bool = False
    """True if each key that tasks name has slots, or tokens, of its own."""
    has_keys: bool = False
    """True if sweeps may have keys to look at: those of this rule, or of one before it."""
    more: tuple[Any, ...] = ()
    """Parts that a newer release has appended: they are kept, and not read."""

    @property
    def has_slots(self) -> bool:
        return not self.rate or self.slots > 0

    @property
    def has_starts(self) -> bool:
        return self.rate > 0

    @property
    def has_both(self) -> bool:
        return self.rate > 0 and self.slots > 0


def free_of_unused(rule: Rule) -> int:
    """Number of tasks of a key that may start, if no task has used the key."""
    return min(few for few, has in ((rule.slots, rule.has_slots), (rule.burst, rule.has_starts)) if has)


rule_to_bytes = msgspec.msgpack.Encoder().encode
_rule_of = msgspec.msgpack.Decoder(Rule).decode


@lru_cache(maxsize=256)
def rule_of(value: bytes | None) -> Rule | None:
    """None for a limit that does not exist, or that cannot be read: it limits nothing."""
    try:
        rule = None if value is None else _rule_of(value)
    except DAMAGED:
        return None
    return rule if rule is None or not rule.has_starts or (rule.per_us and rule.burst) else None


def known_rule(name: str, value: bytes | None) -> Rule:
    rule = rule_of(value)
    if rule is None:
        raise error_of(name, value) or LimitNotFound(name=name)
    return rule


def error_of(name: str, value: bytes | None) -> LimitUnreadable | None:
    """The error of a limit that cannot be read; None for one that can, or that does not exist."""
    if value is None or rule_of(value) is not None:
        return None
    try:
        _rule_of(value)
    except DAMAGED as error:
        return LimitUnreadable(name=name, reason=f"it is damaged: {error}")
    return LimitUnreadable(name=name, reason="it is damaged: a rate with no span of time, or no burst")


def checked_rule(slots: Any, rate: Any, per: Any, burst: Any, per_key: Any = False) -> Rule:
    """Raises: InvalidArgument unless it has slots, or a rate with its span of time, or both."""
    if not isinstance(per_key, bool):
        raise InvalidArgument(name="per_key", wanted="True or False", got=per_key)
    return msgspec.structs.replace(
        _checked_numbers(slots, rate, per, burst), per_key=per_key, has_keys=per_key
    )


def _checked_numbers(slots: Any, rate: Any, per: Any, burst: Any) -> Rule:
    if slots is None and rate is None:
        raise InvalidArgument(name="slots", wanted="a number, or None beside a `rate`", got=slots)
    for name, value in (("per", per), ("burst", burst)):
        if rate is None and value is not None:
            raise InvalidArgument(name=name, wanted="None without a `rate`", got=value)
    rule = Rule() if rate is None else _checked_rate(rate, per, burst)
    if slots is None:
        return rule
    return msgspec.structs.replace(rule, slots=checked_count("slots", slots, limits.SLOTS_MAX))


def _checked_rate(rate: Any, per: Any, burst: Any) -> Rule:
    if per is None:
        raise InvalidArgument(name="per", wanted="the seconds in which `rate` tasks may start", got=per)
    per_us = round(min(checked_positive("per", per, "seconds"), limits.RATE_SPAN_MAX_S) * 1_000_000)
    most = max(1, per_us * limits.STARTS_PER_S_MAX // 1_000_000)
    rate = checked_count("rate", rate, most)
    default = max(1, rate // limits.BURST_SHARE)
    burst = default if burst is None else checked_count("burst", burst, limits.BURST_MAX)
    return Rule(rate=rate, per_us=max(1, per_us), burst=burst)


def keys_of(name: Any, root: Any) -> LimitKeys:
    return LimitKeys(RootKeys(root).prefix, checked_limit_name(name))


def checked_limit_name(name: Any) -> str:
    return checked_text("limit", name, limits.QUEUE_NAME_BYTES_MAX)


def checked_limit_names(argument: str, names: Iterable[str] | None) -> tuple[str, ...]:
    """The names of limits in order, each once. Raises InvalidArgument."""
    given = () if names is None else checked_items(argument, names)
    checked = tuple(sorted({checked_limit_name(name) for name in given}))
    if len(checked) > limits.LIMITS_PER_QUEUE_MAX:
        wanted = f"at most {limits.LIMITS_PER_QUEUE_MAX} names of limits"
        raise InvalidArgument(name=argument, wanted=wanted, got=given)
    return checked


def checked_named(argument: str, named: Any) -> tuple[tuple[str, ...], dict[str, bytes]]:
    """The names of limits in order, each once, and the packed keys that some of them have."""
    names = checked_limit_names(argument, [*named] if isinstance(named, Mapping) else named)
    if not isinstance(named, Mapping):
        return names, {}
    keys = {name: key_bytes(key, argument) for name, key in named.items() if key is not None}
    if len(keys) > 1:
        wanted = "at most one limit with a key: a task waits for one key at a time"
        raise InvalidArgument(name=argument, wanted=wanted, got=named)
    return names, keys


def checked_limits(
    of_all: Iterable[str] | None, named: Iterable[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The limits of all tasks of a queue, and those that its tasks may name. Raises InvalidArgument."""
    limits_of_all, task_limits = (
        checked_limit_names("limits", of_all),
        checked_limit_names("task_limits", named),
    )
    if not set(limits_of_all).isdisjoint(task_limits):
        wanted = "other names than those in `limits`, which hold for all tasks"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=named)
    if sum(len(name.encode()) for name in task_limits) > limits.TASK_LIMITS_BYTES_MAX:
        wanted = f"names of at most {limits.TASK_LIMITS_BYTES_MAX} bytes together"
        raise InvalidArgument(name="task_limits", wanted=wanted, got=named)
    return limits_of_all, task_limits


def require_limits(target: DatabaseOrTransaction, prefix: bytes, names: Sequence[str]) -> None:
    """Reads: the limits, serialisably. LimitNotFound for a name that has none; LimitUnreadable."""
    run(target, partial(_require, keys=[LimitKeys(prefix, name) for name in names]))


def _require(tr: Transaction, keys: Sequence[LimitKeys]) -> None:
    asked = [(one, tr.get(one.row)) for one in keys]
    for one, row in asked:
        known_rule(one.name, row.value)
