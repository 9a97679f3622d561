"""Settling: keys of a limit whose lanes have to be looked at again, a few in each sweep.

A key is *due* at the time of its key R[17, name, 6]: its next token has come, or one transaction could not
turn all of its lanes. Takes open these lanes on their way, as they sweep tasks that are due. The rest is left
to the sweeps of the keeper. They clear rows that are over, and *walk* through the lanes and holders of all
keys: the limit has changed, or a truncate, a drop or a mending has removed tasks that held slots. All read
the rows by which they decide serialisably, so several sweeps at once do no harm.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from fdbqueue.core import limits
from fdbqueue.core.database import run, runtime_of
from fdbqueue.core.seam import DatabaseOrTransaction, KeyValue, Range, Transaction, Value
from fdbqueue.tasks.limiting.key_state import KeyState
from fdbqueue.tasks.limiting.keys import KEY_HOLDER, KEYED, LimitKeys, held_of
from fdbqueue.tasks.limiting.rule import rule_of
from fdbqueue.tasks.limiting.state import ring
from fdbqueue.tasks.parking.turning import ask_lanes, task_keys, turn, turn_asked
from fdbqueue.tasks.records.keys import sound_record

_LATER = b"\x00"


class Settling:
    def __init__(self, root: bytes, keys: LimitKeys) -> None:
        self._root = root
        self._keys = keys

    def ask(self, tr: Transaction, now_us: int) -> Callable[[], bool]:
        """Ask, by snapshot, for keys that are due. The reply settles some. True if there were any."""
        due = self._ask_few(tr, self._keys.dues_until(now_us))
        return lambda: self._settle(tr, due.to_list(), now_us)

    def ask_rest(self, tr: Transaction, now_us: int) -> Callable[[], bool]:
        """Ask, by snapshot, for the keeper's work: rows that are over, and a walk. True if there was any."""
        over, walk = self._ask_few(tr, self._keys.overs_until(now_us)), tr.snapshot.get(self._keys.walk)
        return lambda: self._forget(tr, over.to_list(), now_us) or self._walk(tr, walk, now_us)

    def _ask_few(self, tr: Transaction, under: slice) -> Range:
        return tr.snapshot.get_range(under.start, under.stop, limit=limits.KEYS_SETTLED)

    def ask_next(self, tr: Transaction) -> Callable[[], int | None]:
        return self._ask_first(tr, self._keys.dues)

    def ask_next_rest(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask, by snapshot, for the time at which the keeper has something to do."""
        first, walk = self._ask_first(tr, self._keys.overs), tr.snapshot.get(self._keys.walk)
        return lambda: 0 if walk.present() else first()

    def _ask_first(self, tr: Transaction, under: slice) -> Callable[[], int | None]:
        first = tr.snapshot.get_range(under.start, under.stop, limit=1)
        return lambda: next((self._keys.parts_of(row.key)[1] for row in first), None)

    # Keys that are due.

    def _settle(self, tr: Transaction, due: Sequence[KeyValue], now_us: int) -> bool:
        parts = [self._keys.parts_of(row.key) for row in due]
        states = self._states(tr, [key for _, _, key in parts])
        lanes = [ask_lanes(tr, self._keys, state.key, state.has_room(now_us)) for state in states]
        for (_, time_us, _), state, rows in zip(parts, states, lanes, strict=True):
            self._settle_key(tr, time_us, state, rows, now_us)
        return bool(due)

    def _states(self, tr: Transaction, keys: Sequence[bytes]) -> list[KeyState]:
        rule, rows = tr.get(self._keys.row), [tr.get(self._keys.count(key)) for key in keys]
        found = rule_of(rule.value)
        return [KeyState(self._keys, key, found, row.value) for key, row in zip(keys, rows, strict=True)]

    def _settle_key(self, tr: Transaction, time_us: int, state: KeyState, lanes: Range, now_us: int) -> None:
        tr.clear(self._keys.due(time_us, state.key))
        turn_asked(tr, self._root, self._keys, state.key, lanes.to_list(), state.has_room(now_us), at_least=1)
        # Else it is one of slots, or has another time by now. At 0, a faster clock may have met its token.
        if state.over_us and state.due_us == time_us:
            state.refill(tr, state.full_ns, now_us, anew=True)

    def _forget(self, tr: Transaction, over: Sequence[KeyValue], now_us: int) -> bool:
        parts = [self._keys.parts_of(row.key) for row in over]
        states = self._states(tr, [key for _, _, key in parts])
        for (_, time_us, key), state in zip(parts, states, strict=True):
            if state.over_us == time_us:
                state.look_later(tr, now_us)
            else:
                tr.clear(self._keys.over(time_us, key))
        return bool(over)

    # All keys.

    def walk(self, tr: Transaction, now_us: int) -> bool:
        """Look at the next limits.KEY_ROWS_WALKED rows of a walk. False without one."""
        return self._walk(tr, tr.snapshot.get(self._keys.walk), now_us)

    def _walk(self, tr: Transaction, walk: Value, now_us: int) -> bool:
        if not walk.present():
            return False
        after = tr.get(self._keys.walk).value or b""
        under, most = self._keys.of_keys, limits.KEY_ROWS_WALKED
        start = after + _LATER if after else under.start
        rows = tr.get_range(start, under.stop, limit=most).to_list()
        self._look_at(tr, rows, now_us)
        if len(rows) < most:
            tr.clear(self._keys.walk)
        else:
            tr.set(self._keys.walk, rows[-1].key)
        return True

    def _look_at(self, tr: Transaction, rows: Sequence[KeyValue], now_us: int) -> None:
        parts = [(row, *self._keys.parts_of(row.key)[1:]) for row in rows]
        holders = [(row, key, queue, id_) for row, key, side, queue, id_, *_ in parts if side == KEY_HOLDER]
        self._take_back(tr, holders)
        states = self._states(tr, [*dict.fromkeys(key for _, key, *_ in parts)])
        room = {state.key: state.has_room(now_us) for state in states}
        for has_room in (True, False):
            few = [
                (key, place, row.key)
                for row, key, side, *place in parts
                if side != KEY_HOLDER and room[key] == has_room
            ]
            turn(tr, self._root, self._keys, few, has_room)
        for state in states:
            if state.over_us and state.is_apart:
                state.refill(tr, state.full_ns, now_us)

    def _take_back(self, tr: Transaction, holders: Sequence[tuple[KeyValue, bytes, int, bytes]]) -> None:
        asked = []
        for row, key, queue, id_ in holders:
            held = held_of(row.value)
            task = None if held is None else tr.get(task_keys(self._root, queue, held.partition).task(id_))
            asked.append((row, key, id_, task))
        for row, key, id_, task in asked:
            if task is None or not _holds(task.value, id_, self._keys.name):
                tr.clear(row.key)
                KeyState(self._keys, key, None, None).hold(tr, -1)


def begin_walks(tr: Transaction, of: Iterable[LimitKeys]) -> None:
    """Have sweeps go through all keys of the limits that have some. Reads: by snapshot."""
    for keys, row in [(keys, tr.snapshot.get(keys.row)) for keys in of]:
        rule = rule_of(row.value)
        if rule is None or rule.has_keys:
            tr.set(keys.walk, b"")
        if rule is not None and rule.has_keys:
            ring(tr, keys)


def walk_out(db: DatabaseOrTransaction, root: bytes, keys: LimitKeys) -> Iterator[None]:
    """End the walk that is under way, if there is one: a step for each transaction."""
    walk = Settling(root, keys).walk
    while run(db, lambda tr: walk(tr, runtime_of(tr).now_us())):
        yield


def _holds(stored: bytes | None, id_: bytes, name: str) -> bool:
    """True if the task may hold a slot of its key; also for a record that cannot be read."""
    record = sound_record(stored, id_)
    if record is None:
        return stored is not None
    return record.extra is not None and record.extra.slots.get(name) == KEYED
