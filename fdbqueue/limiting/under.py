"""Under: the limits of one queue, as takes use them and ends of tasks give back their slots.

All tasks of the queue are under some of them. The others hold for the tasks that name them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from fdbqueue import limits
from fdbqueue.limiting.gate import Gate
from fdbqueue.limiting.holders import ask_holders, reached_of
from fdbqueue.limiting.keys import Held, LimitKeys, encode_held, held_of
from fdbqueue.limiting.state import State, ask, ask_by_snapshot, give_slots, rely_on_all
from fdbqueue.reached import ReachedLimit
from fdbqueue.seam import ReadTransaction, Transaction

Slots = Mapping[str, int]
"""The cells of the slots that a task holds, by the names of their limits."""

Holder = tuple[str, int, bytes]
"""The queue, the partition and the session that hold tasks."""

Starting = tuple[bytes, Collection[str]]
"""The id of a task that starts, and the limits that it names."""


class Limits:
    """The limits of a queue: those under which all of its tasks are taken, and those that tasks may name."""

    def __init__(self, root: bytes, queue: int, names: Sequence[str], named: Sequence[str] = ()) -> None:
        self._queue = queue
        self._of_all = {name: LimitKeys(root, name) for name in names}
        self._named = {name: LimitKeys(root, name) for name in named}
        self._keys = self._of_all | self._named
        self._most = max(1, limits.BATCH_HOLDERS_BYTES_MAX // sum(map(_holder_bytes, self._keys)))
        self.bells = [keys.bell for keys in self._keys.values()]
        """Keys of which one changes when a slot is free again, and when a limit changes."""

    def ask_gate(self, tr: Transaction, now_us: int) -> Gate:
        """Ask for the tasks that may start now, in one transaction.

        Reads: the limits, serialisably; their slots and tokens, by snapshot.
        """
        of_all, named = (
            {name: _free(ask(tr, keys), now_us) for name, keys in some.items()}
            for some in (self._of_all, self._named)
        )
        return Gate(of_all.values(), named, self._most)

    def ask_next(self, tr: Transaction, now_us: int) -> Callable[[], int | None]:
        """Ask for the time at which tokens have come, if there are none now; in microseconds."""
        of_all, named = ([ask(tr, keys) for keys in some.values()] for some in (self._of_all, self._named))

        def reply() -> int | None:
            first = max(_known(state().next_us(now_us) for state in of_all), default=None)
            return min(_known((first, *(state().next_us(now_us) for state in named))), default=None)

        return reply

    def ask_reached(
        self, tr: ReadTransaction, now_us: int, names: Collection[str]
    ) -> Callable[[], tuple[ReachedLimit, ...]]:
        """Ask for the limits that let no task with these names start now, with their holders. Reads by
        snapshot.
        """
        asked = [(ask_by_snapshot(tr, keys), ask_holders(tr, keys)) for keys in self._of(names)]

        def reply() -> tuple[ReachedLimit, ...]:
            found = [(state(), holders()) for state, holders in asked]
            return tuple(
                reached_of(state, now_us, holders) for state, holders in found if state.free(now_us) == 0
            )

        return reply

    def holder(self, name: str, id_: bytes) -> bytes | None:
        """The key of a task that holds a slot; None for a limit that is none of the queue."""
        keys = self._keys.get(name)
        return None if keys is None else keys.holder(self._queue, id_)

    def _of(self, names: Collection[str]) -> list[LimitKeys]:
        """The limits of a task with these names."""
        return [*self._of_all.values(), *(keys for name, keys in self._named.items() if name in names)]

    def rely_on(self, tr: Transaction) -> None:
        """Conflict with each change of a limit, of its slots and of its tokens."""
        for keys in self._keys.values():
            rely_on_all(tr, keys)

    def start(
        self, tr: Transaction, tasks: Sequence[Starting], holder: Holder, random: bytes, now_us: int
    ) -> list[Slots]:
        """Let tasks start. Return the slots of each.

        `random`: another one for each take, so that takes use different cells.
        Reads: the limits of these tasks, as `ask_gate`.
        Writes: cells, and a holder for each slot.
        Conflicts: takes that use one of these cells.
        Raises: a conflict if fewer tasks may start.
        """
        slots: list[dict[str, int]] = [{} for _ in tasks]
        asked = [(ask(tr, keys), few) for keys, few in self._users(tasks)]
        for reply, few in asked:
            state = reply()
            cells = state.start(tr, len(few), random[0], now_us)
            for at, cell in zip(few, cells, strict=False):
                slots[at][state.keys.name] = cell
                tr.set(state.keys.holder(self._queue, tasks[at][0]), encode_held(Held(cell, *holder)))
        return [*slots]

    def _users(self, tasks: Sequence[Starting]) -> Iterator[tuple[LimitKeys, Sequence[int]]]:
        """Each limit of these tasks, with their numbers."""
        for keys in self._of_all.values():
            yield keys, range(len(tasks))
        for name, keys in self._named.items():
            few = [at for at, (_, names) in enumerate(tasks) if name in names]
            if few:
                yield keys, few

    def give_back(self, tr: Transaction, held: Sequence[tuple[bytes, Slots]]) -> None:
        """Give back the slots of tasks that end, or wait again. Writes: blindly."""
        for name, keys in self._keys.items():
            cells = [slots[name] for _, slots in held if name in slots]
            if cells:
                give_slots(tr, keys, cells)
            for id_, _ in held:
                tr.clear(keys.holder(self._queue, id_))

    def give_back_unread(self, tr: Transaction, id_: bytes) -> None:
        """Give back the slots of a task with a record that cannot be read. Reads: its holders' keys."""
        held = [(keys, keys.holder(self._queue, id_)) for keys in self._keys.values()]
        asked = [(keys, key, tr.get(key)) for keys, key in held]
        for keys, key, value in asked:
            _give_back_of(tr, keys, [value.value] if value.present() else [])
            tr.clear(key)

    def give_back_all(self, tr: Transaction) -> None:
        """Give back the slots of all tasks of the queue, at most limits.SLOTS_MAX of each limit.

        Reads: the holders, serialisably.
        """
        under = [(keys, keys.holders_in(self._queue)) for keys in self._keys.values()]
        asked = [(keys, tr.get_range(holders.start, holders.stop)) for keys, holders in under]
        for keys, rows in asked:
            _give_back_of(tr, keys, [row.value for row in rows])
            holders = keys.holders_in(self._queue)
            tr.clear_range(holders.start, holders.stop)  # each of them by itself were megabytes


def _give_back_of(tr: Transaction, keys: LimitKeys, holders: Iterable[bytes]) -> None:
    cells = [held.cell for held in map(held_of, holders) if held is not None]
    if cells:
        give_slots(tr, keys, cells)


def _holder_bytes(name: str) -> int:
    """The bytes that a start writes for a limit at most: the value of a holder has the name of its queue."""
    return 200 + limits.QUEUE_NAME_BYTES_MAX + 4 * len(name.encode())


def _known(numbers: Iterable[int | None]) -> Iterator[int]:
    return (number for number in numbers if number is not None)


def _free(reply: Callable[[], State], now_us: int) -> Callable[[], int | None]:
    return lambda: reply().free(now_us)


def limits_of(root: bytes, queue: int, names: Sequence[str], named: Sequence[str]) -> Limits | None:
    return Limits(root, queue, names, named) if names or named else None
