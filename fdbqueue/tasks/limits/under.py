"""Under: the limits of one queue, as takes use them and ends of tasks give back their slots.

All tasks of the queue are under some of them. The others hold for the tasks that name them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from fdbqueue.core import limits
from fdbqueue.core.database import runtime_of
from fdbqueue.core.seam import DatabaseOrTransaction, ReadTransaction, Transaction
from fdbqueue.core.task import ReachedLimit
from fdbqueue.tasks.limits.parking import (
    Settling,
    ask_lanes,
    begin_walks,
    rely_on_lanes,
    turn_asked,
    walk_out,
)
from fdbqueue.tasks.limits.rule import KEYED, Held, LimitKeys, Rule, encode_held, held_of, rule_of
from fdbqueue.tasks.limits.shown import ask_holders, reached_of, unreadable_of
from fdbqueue.tasks.limits.state import (
    Ask,
    Gate,
    Keyed,
    State,
    ask,
    ask_by_snapshot,
    ask_key,
    give_slots,
    rely_on_all,
)

Slots = Mapping[str, int]
"""The cells of the slots that a task holds, by the names of their limits; KEYED for a slot of its key."""

Holder = tuple[str, int, bytes]
"""The queue, the partition and the session that hold tasks."""

Starting = tuple[bytes, Collection[str], Keyed | None]
"""The id of a task that starts, the limits that it names, and the one that it names with a key."""

Ended = tuple[bytes, Slots, Keyed | None]
"""The id of a task that holds slots no more, these slots, and the limit that it names with a key."""


@dataclass(frozen=True)
class _Apart:
    """The limits that tasks name, as one look has asked for them: `Apart` of its gate."""

    states: Mapping[str, Callable[[], State]]
    now_us: int

    def counts(self, name: str) -> bool:
        rule = self.states[name]().rule
        return rule is not None and rule.per_key

    def ask(self, tr: Transaction, name: str, key: bytes) -> Ask:
        state = self.states[name]()
        asked = ask_key(tr.snapshot, state.keys, key)
        return lambda: asked(state.rule).free(self.now_us)


class Limits:
    """The limits of a queue: those under which all of its tasks are taken, and those that tasks may name."""

    def __init__(self, root: bytes, queue: int, names: Sequence[str], named: Sequence[str] = ()) -> None:
        self._root = root
        self._queue = queue
        self._of_all = {name: LimitKeys(root, name) for name in names}
        self._named = {name: LimitKeys(root, name) for name in named}
        self._keys = self._of_all | self._named
        # At most: the value of a holder has the name of its queue.
        each_bytes = [200 + limits.QUEUE_NAME_BYTES_MAX + 4 * len(name.encode()) for name in self._keys]
        self._most = max(1, limits.BATCH_HOLDERS_BYTES_MAX // sum(each_bytes))
        self.bells = [keys.bell for keys in self._keys.values()]
        """Keys of which one changes when a slot is free again, and when a limit changes."""
        self._has_keys = dict[str, bool]()
        """True for the limits that had keys when this process saw them last. It is advice: the next look asks
        for the keys to settle at once.
        """

    def ask_gate(self, tr: Transaction, now_us: int) -> Gate:
        """Ask for the tasks that may start now, in one transaction.

        Reads: the limits, serialisably; their slots and tokens, by snapshot.
        """
        states = {name: ask(tr, keys) for name, keys in self._keys.items()}
        of_all = [_free(states[name], now_us) for name in self._of_all]
        named = {name: partial(self._free_of, name, states[name], now_us) for name in self._named}
        return Gate(of_all, named, self._most, _Apart(states, now_us), states)

    def ask_settle(self, tr: Transaction, now_us: int) -> Callable[[], bool]:
        """Ask, by snapshot, for keys to look at again. The reply settles some. True if there were any."""
        asked = [
            (name, tr.get(keys.row)) for name, keys in self._named.items() if self._has_keys.get(name, True)
        ]
        if not asked:
            return lambda: False
        early = {name: self._settling(name).ask(tr, now_us) for name, _ in asked if name in self._has_keys}

        def settle() -> bool:
            for name, row in asked:
                self._note(name, rule_of(row.value))
                if self._has_keys[name] and (early.get(name) or self._settling(name).ask(tr, now_us))():
                    return True
            return False

        return settle

    def ask_rest(self, tr: Transaction, now_us: int) -> Callable[[], bool]:
        """As `ask_settle`, for what sweeps of the keeper do alone."""
        early = {
            name: self._settling(name).ask_rest(tr, now_us) for name, has in self._has_keys.items() if has
        }
        return lambda: any(rest() for rest in early.values())

    def ask_next_rest(self, tr: Transaction) -> Callable[[], int | None]:
        """Ask for the time at which `ask_rest` has something to do, in microseconds."""
        asked = [(name, tr.snapshot.get(keys.row)) for name, keys in self._named.items()]

        def reply() -> int | None:
            for name, row in asked:
                self._note(name, rule_of(row.value))
            settling = [self._settling(name).ask_next_rest(tr) for name, has in self._has_keys.items() if has]
            return min(_known(next_us() for next_us in settling), default=None)

        return reply

    def _note(self, name: str, rule: Rule | None) -> None:
        self._has_keys[name] = rule is None or rule.has_keys

    def _free_of(self, name: str, reply: Callable[[], State], now_us: int) -> int | None:
        state = reply()
        self._note(name, state.rule)
        return state.free(now_us)

    def _settling(self, name: str) -> Settling:
        return Settling(self._root, self._named[name])

    def ask_next(self, tr: Transaction, now_us: int) -> Callable[[], int | None]:
        """Ask for the time at which tokens have come, if there are none now, or at which there is a key to
        settle; in microseconds.
        """
        of_all, named = (
            {name: ask(tr, keys) for name, keys in some.items()} for some in (self._of_all, self._named)
        )
        early = {name: self._settling(name).ask_next(tr) for name, has in self._has_keys.items() if has}

        def reply() -> int | None:
            first = max(_known(state().wakes_us(now_us) for state in of_all.values()), default=None)
            tokens, keys = [state().wakes_us(now_us) for state in named.values()], list[int | None]()
            for name, state in named.items():
                self._note(name, state().rule)
                if self._has_keys[name]:
                    keys.append((early.get(name) or self._settling(name).ask_next(tr))())
            return min(_known((first, *tokens, *keys)), default=None)

        return reply

    def ask_reached(
        self, tr: ReadTransaction, now_us: int, names: Collection[str], keyed: Keyed | None = None
    ) -> Callable[[], tuple[ReachedLimit, ...]]:
        """Ask, by snapshot, for the limits that let no such task start now, with their holders."""
        named = (keys for name, keys in self._named.items() if name in names)
        asked = [self._ask_reached(tr, now_us, keys, keyed) for keys in (*self._of_all.values(), *named)]
        return lambda: tuple(found for reply in asked if (found := reply()) is not None)

    def _ask_reached(
        self, tr: ReadTransaction, now_us: int, keys: LimitKeys, keyed: Keyed | None
    ) -> Callable[[], ReachedLimit | None]:
        whole, holders = ask_by_snapshot(tr, keys), ask_holders(tr, keys)
        key = keyed[1] if keyed is not None and keyed[0] == keys.name else None
        of_key = None if key is None else ask_key(tr, keys, key)
        key_holders = None if key is None else ask_holders(tr, keys, key)

        def reply() -> ReachedLimit | None:
            state = whole()
            if key is not None and state.error is not None:
                return self._parked(tr, state, key)
            if key is None or of_key is None or key_holders is None or not state.counts_keys:
                return reached_of(state, now_us, holders()) if state.free(now_us) == 0 else None
            found = of_key(state.rule)
            return None if found.has_room(now_us) else reached_of(found, now_us, key_holders())

        return reply

    def _parked(self, tr: ReadTransaction, state: State, key: bytes) -> ReachedLimit | None:
        """The unreadable limit, if lanes of the queue wait for the key. Round trips: 1."""
        rows = ask_lanes(tr, state.keys, key, has_room=True)
        waits = any(state.keys.parts_of(row.key)[-3] == self._queue for row in rows)
        return unreadable_of(state, key) if waits else None

    def holder(self, name: str, id_: bytes, key: bytes | None = None) -> bytes | None:
        """The key of a task that holds a slot, of its key if there is one; None for a limit of others."""
        keys = self._keys.get(name)
        if keys is None:
            return None
        return keys.holder(self._queue, id_) if key is None else keys.key_holder(key, self._queue, id_)

    def rely_on(self, tr: Transaction) -> None:
        """Conflict with each change of a limit, of its slots and of its tokens."""
        for keys in self._keys.values():
            rely_on_all(tr, keys)

    def start(
        self,
        tr: Transaction,
        tasks: Sequence[Starting],
        holder: Holder,
        random: bytes,
        now_us: int,
        gate: Gate | None,
    ) -> list[Slots]:
        """Let tasks start. Return the slots of each.

        `random`: another one for each take, so that takes use different cells. `gate`: that of the look, in
        this transaction, which has found the tasks.
        Conflicts: takes that use one of these cells.
        """
        slots: list[dict[str, int]] = [{} for _ in tasks]
        known = {} if gate is None else gate.spend()
        asked = [(known.get(keys.name) or ask(tr, keys), few) for keys, few in self._users(tasks)]
        for reply, few in asked:
            state = reply()
            few = self._start_keys(tr, state, tasks, few, slots, holder, now_us) if state.counts_keys else few
            cells = state.start(tr, len(few), random[0], now_us) if few else ()
            held = {cell: encode_held(Held(cell, *holder)) for cell in set(cells)}
            for at, cell in zip(few, cells, strict=False):
                slots[at][state.keys.name] = cell
                tr.set(state.keys.holder(self._queue, tasks[at][0]), held[cell])
        return [*slots]

    def _start_keys(
        self,
        tr: Transaction,
        state: State,
        tasks: Sequence[Starting],
        few: Sequence[int],
        slots: Sequence[dict[str, int]],
        holder: Holder,
        now_us: int,
    ) -> Sequence[int]:
        """Let the tasks start that name the limit with a key. Return the numbers of the others.

        The open lanes of keys that are exhausted now are parked.
        """
        groups: dict[bytes, list[int]] = {}
        for at in few:
            keyed = tasks[at][2]
            if keyed is not None and keyed[0] == state.keys.name:
                groups.setdefault(keyed[1], []).append(at)
        keys = state.keys
        asked = [
            (key, ats, ask_key(tr.snapshot, keys, key), ask_lanes(tr.snapshot, keys, key, has_room=False))
            for key, ats in groups.items()
        ]
        for key, ats, of_key, lanes in asked:
            if of_key(state.rule).start(tr, len(ats), now_us):
                rely_on_lanes(tr, keys, key)
                turn_asked(tr, self._root, keys, key, lanes.to_list(), has_room=False)
            if state.rule is not None and state.rule.has_slots:
                for at in ats:
                    slots[at][keys.name] = KEYED
                    held = encode_held(Held(KEYED, *holder))
                    tr.set(keys.key_holder(key, self._queue, tasks[at][0]), held)
        apart = set(chain.from_iterable(groups.values()))
        return [at for at in few if at not in apart]

    def _users(self, tasks: Sequence[Starting]) -> Iterator[tuple[LimitKeys, Sequence[int]]]:
        for keys in self._of_all.values():
            yield keys, range(len(tasks))
        for name, keys in self._named.items():
            few = [at for at, (_, names, _) in enumerate(tasks) if name in names]
            if few:
                yield keys, few

    def give_back(self, tr: Transaction, held: Sequence[Ended]) -> None:
        """Give back the slots of tasks that end, or wait again. Writes: blindly; of keys, as
        `_give_keys_back`.
        """
        for name, keys in self._keys.items():
            mine = [(id_, slots[name], keyed) for id_, slots, keyed in held if name in slots]
            cells = [cell for _, cell, _ in mine if cell != KEYED]
            if cells:
                give_slots(tr, keys, cells)
            freed: dict[bytes, int] = {}
            for id_, cell, keyed in mine:
                if cell != KEYED:
                    tr.clear(keys.holder(self._queue, id_))
                elif keyed is not None:
                    tr.clear(keys.key_holder(keyed[1], self._queue, id_))
                    freed[keyed[1]] = freed.get(keyed[1], 0) + 1
            if freed:
                self._give_keys_back(tr, keys, freed)

    def _give_keys_back(self, tr: Transaction, keys: LimitKeys, freed: Mapping[bytes, int]) -> None:
        """Give back this number of slots of each key, and open the lanes that have waited for them."""
        lanes = [(key, ask_lanes(tr, keys, key, has_room=True)) for key in freed]
        rule, asked = tr.snapshot.get(keys.row), [ask_key(tr.snapshot, keys, key) for key in freed]
        found = rule_of(rule.value)
        for (key, parked), of_key in zip(lanes, asked, strict=True):
            state, waits = of_key(found), parked.to_list()
            may_open = found is None or not found.per_key or state.may_start_after(freed[key])
            if waits and not may_open:  # another end may give back as many meanwhile, and see none open, too
                tr.add_read_conflict_key(keys.count(key))
            state.hold(tr, -freed[key])
            if waits and may_open and state.has_token(tr, freed[key], runtime_of(tr).now_us()):
                turn_asked(tr, self._root, keys, key, waits, has_room=True)

    def give_back_unread(self, tr: Transaction, id_: bytes) -> None:
        """Give back the slots of a task with a record that cannot be read. Reads: its holders' keys. Sweeps
        give back the slots of its keys.
        """
        held = [(keys, keys.holder(self._queue, id_)) for keys in self._keys.values()]
        asked = [(keys, key, tr.get(key)) for keys, key in held]
        for keys, key, value in asked:
            _give_back_of(tr, keys, [value.value] if value.present() else [])
            tr.clear(key)
        begin_walks(tr, self._named.values())

    def give_back_all(self, tr: Transaction) -> None:
        """Give back the slots of all tasks of the queue, at most limits.SLOTS_MAX of each limit. Sweeps give
        back those of keys.

        Reads: the holders, serialisably.
        """
        begin_walks(tr, self._named.values())
        under = [(keys, keys.holders_in(self._queue)) for keys in self._keys.values()]
        asked = [(keys, tr.get_range(holders.start, holders.stop)) for keys, holders in under]
        for keys, rows in asked:
            _give_back_of(tr, keys, [row.value for row in rows])
            holders = keys.holders_in(self._queue)
            tr.clear_range(holders.start, holders.stop)  # each of them by itself were megabytes

    def walk_out(self, db: DatabaseOrTransaction) -> Iterator[None]:
        """End the walks of limits that tasks name, a step for each transaction: sweeps may never come."""
        for keys in self._named.values():
            yield from walk_out(db, self._root, keys)


def _give_back_of(tr: Transaction, keys: LimitKeys, holders: Iterable[bytes]) -> None:
    cells = [held.cell for held in map(held_of, holders) if held is not None]
    if cells:
        give_slots(tr, keys, cells)


def _known(numbers: Iterable[int | None]) -> Iterator[int]:
    return (number for number in numbers if number is not None)


def _free(reply: Callable[[], State], now_us: int) -> Callable[[], int | None]:
    return lambda: reply().free(now_us)
