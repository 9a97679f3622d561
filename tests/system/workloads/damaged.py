"""One process, and damage between its calls: bytes of a stored value are cut, or overwritten.

A damaged value costs itself and nothing else. It is mended, buried or set aside as it was, and all others
are given as they were put.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from random import Random
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.errors import DamagedElement, FdbQueueError, TooMuchForOneTransaction, TooMuchToSweep
from fdbqueue.core.page import every_row
from fdbqueue.core.registry import Registry
from fdbqueue.core.seam import KeyValue
from fdbqueue.core.task import Task, TaskState
from fdbqueue.core.unreadable import SetAside, Unreadable
from fdbqueue.operate.verify.verify import verify
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.fair import FairQueue
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import ID_BYTES, sound_record
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import told, unsound
from tests.system.workloads.common import SPACE, crowded, once
from tests.system.workloads.exact_model import caught, step_by_step

NAME = "damaged"
ROOT = Subspace((NAME,))
"""Not the default one, of which an auditor judges each key: no auditor expects damage."""
KEYS, SHOWN_MAX = 3, 100
_TEXT = b'"<0123456789>'
"""Bytes of a text: other ones in their place would be another value, and no damage."""
HARMS: Sequence[Callable[[bytes], bytes]] = (
    lambda whole: whole[:-1],
    lambda whole: whole[: len(whole) // 2],
    lambda whole: whole[:1] + b"\xff" * (len(whole) - 1),
    lambda whole: whole[:-1] if whole[0] in _TEXT else bytes((whole[0] ^ 1,)) + whole[1:],
)
STATES: Sequence[TaskState] = (TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED)


def key_of(text: str) -> int:
    return len(text) % KEYS


class Handle(ABC):
    """A queue of values, as all kinds of the workload have it."""

    contents: slice
    """The keys in which values may be damaged."""
    harms = HARMS
    """All damages that a reader notices."""

    def __init__(self, q: Any, contents: slice) -> None:
        self.q, self.contents = q, contents

    @abstractmethod
    def put(self, tr: Any, texts: Sequence[str]) -> None:
        """Put a value for each text, in this order."""

    @abstractmethod
    def take(self, tr: Any, count: int) -> list[Any]:
        """Texts, or tasks with their leases."""

    def count(self, db: Any) -> int:
        """The number of the values that are counted, without those that were set aside."""
        count: int = self.q.size(db)
        return count

    @abstractmethod
    def listed(self, db: Any) -> list[Any]:
        """The data of all values; an Unreadable in place of that of a damaged one."""

    def unsound(self, db: Any) -> list[str]:
        """The findings of a verification."""
        return unsound(db, ROOT)

    def aside(self, db: Any) -> list[SetAside]:
        return list(every_row(partial(self.q.aside, db, 2)))


class Items(Handle):
    def __init__(self, client: Client, random: Random) -> None:
        partitions, contended = random.choice((None, 2)), random.choice(("staged", "simple"))
        q = Queue.named(client.db, NAME, partitions=partitions, root=ROOT, contended=contended)
        super().__init__(q, _contents(client))

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        self.q.enqueue_many(tr, texts)

    def take(self, tr: Any, count: int) -> list[Any]:
        return [*self.q.dequeue_many(tr, count)]

    def listed(self, db: Any) -> list[Any]:
        return list(every_row(partial(self.q.items, db, 3)))


class Fair(Handle):
    def __init__(self, client: Client, random: Random) -> None:  # noqa: ARG002  # as the other kinds
        space = SPACE[NAME]
        super().__init__(FairQueue(space, key=key_of, root=ROOT), space.range())

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        for text in texts:
            self.q.put(tr, text)

    def take(self, tr: Any, count: int) -> list[Any]:
        found = (self.q.get(tr) for _ in range(count))
        return [text for text in found if text is not None]

    def listed(self, db: Any) -> list[Any]:
        found = self.q.snapshot(db, SHOWN_MAX)
        return [*found.round, *(item for _, items in found.lines for item in items)]

    def unsound(self, db: Any) -> list[str]:
        return [*super().unsound(db), *told(verify(db, self.q))]


class Elements(Handle):
    harms = HARMS[:2]
    """Other bytes of the same length may be those of an element with another schema, which stays."""

    def __init__(self, client: Client, random: Random) -> None:  # noqa: ARG002  # as the other kinds
        q = ElementQueue.named(client.db, NAME, schema={"body": "string"}, root=ROOT)
        super().__init__(q, _contents(client))

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        for text in texts:
            self.q.add(tr, {"body": text})

    def take(self, tr: Any, count: int) -> list[Any]:
        found = (self._dequeued(tr, name) for name in list(self.q.names(tr)))
        return list(islice((text for text in found if is_readable(text)), count))

    def _dequeued(self, tr: Any, name: str) -> Any:
        try:
            return self.q.dequeue(tr, name)["body"]
        except DamagedElement as error:
            return Unreadable(error, b"")

    def count(self, db: Any) -> int:
        count: int = self.q.count(db)
        return count

    def listed(self, db: Any) -> list[Any]:
        """A damaged element raises its error, each time: a look sets none aside."""
        shown = list[Any]()
        for name in self.q.names(db):
            with suppress(DamagedElement):
                shown.append(self.q.get_element(db, name)["body"])
        return shown


class Tasks(Handle):
    """Tasks of any kind. A task that is taken stays in the queue until it is acked."""

    def __init__(self, client: Client, random: Random) -> None:
        kind = random.choice(("fifo", "fifottl", "utube", "utubettl", "fair"))
        self.is_keyed = kind in ("utube", "utubettl", "fair")
        partitions = 2 if kind != "fifottl" and random.random() < 0.3 else 1
        q = TaskQueue.create(client.db, NAME, kind, root=ROOT, partitions=partitions)
        super().__init__(q, q.contents.range())

    def put(self, tr: Any, texts: Sequence[str]) -> None:
        for text in texts:
            options: dict[str, Any] = {"key": key_of(text)} if self.is_keyed else {}
            if self.q.kind.endswith("ttl"):
                options["pri"] = len(text) % 5
            self.q.put(tr, text, **options)

    def take(self, tr: Any, count: int) -> list[Any]:
        return [*self.q.take_many(tr, count)]

    def count(self, db: Any) -> int:
        tasks = self.q.statistics(db)["tasks"]
        return sum(tasks[state.name.lower()] for state in STATES)

    def listed(self, db: Any) -> list[Any]:
        return [task.data for state in STATES for task in self.tasks(db, state)]

    def tasks(self, db: Any, state: TaskState) -> list[Task]:
        return list(every_row(partial(self.q.tasks, db, state, 3)))


KINDS: Sequence[Callable[[Client, Random], Handle]] = (Items, Fair, Elements, Tasks, Tasks, Tasks)


def _contents(client: Client) -> slice:
    """The keys of the one queue that has a name."""
    [definition] = Registry(ROOT).names(client.db)
    under: slice = Registry(ROOT).contents(definition).range()
    return under


def is_readable(data: Any) -> bool:
    return not isinstance(data, Unreadable)


WITHIN, LARGE, DELAY_S, MOST = 0.3, 0.3, 0.5, 30
VERBS = (*("put",) * 5, *("take",) * 5, *("settle",) * 4, *("damage",) * 3, "kick", "look")
_MARK = re.compile(rb"<(\d+)>")


@workload(
    clients=1, steps=40, never=("die", "stall", "slow_reply", "clock_skew_s"), wide=("BATCH_BYTES_MAX",)
)
def damaged(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} {NAME}")
    crowded(simulation)
    simulation.limit(PAYLOAD_PIECE_BYTES_MAX=random.choice((16, 100_000)))
    make = random.choice(KINDS)
    step_by_step(simulation, size, lambda client: Process(client, make(client, random)), NAME, Process.end)
    return []


class Process:
    def __init__(self, client: Client, handle: Handle) -> None:
        self._client, self._handle, self._random = client, handle, client.random
        self._number = 0
        self._there: dict[int, str] = {}
        """The values that are in the queue, or were set aside."""
        self._held: dict[int, Task] = {}
        self._later: set[int] = set()
        """Values that are buried, or delayed."""
        self._stuck: set[int] = set()
        """Damaged tasks with a lease that cannot be ended."""
        self._mendable: set[int] = set()
        """Values with one damaged copy of their record, and a sound one."""
        self._harmed: dict[int, bytes] = {}
        """The other damaged values, and the damaged bytes of each."""

    def step(self) -> None:
        getattr(self, f"_{self._random.choice(VERBS)}")()
        self._require_counts()

    def end(self) -> None:
        self._client.call(NAME, "end", None, self._take_all)

    def _take_all(self) -> None:
        """Take all that is left. Then only damaged values are there, as they were."""
        db, q = self._client.db, self._handle.q
        if isinstance(self._handle, Tasks):
            q.release_all(db)
            self._held, self._stuck = {}, set()
            self._client.runtime.sleep(2 * DELAY_S)
            q.kick(db, MOST)
            self._later = set()
        while self._sound():
            self._take_by(db, 4)
            self._ack_all()
        self._take_by(db, 1)
        self._require_aside()
        assert not (found := self._handle.unsound(db)), found

    # Rules.

    def _sound(self) -> set[int]:
        return self._there.keys() - self._harmed.keys()

    def _require_counts(self) -> None:
        counted, aside = self._counts()
        if counted + aside != len(self._there):  # a sweep of the keeper may come between the two reads
            counted, aside = self._counts()
        told = f"{counted} values are counted, {aside} were set aside, and there is {self._there}"
        assert counted + aside == len(self._there), told

    def _counts(self) -> tuple[int, int]:
        """The numbers of values that are counted, and that were set aside."""
        aside = self._handle.q.unreadable(self._client.db)
        return self._handle.count(self._client.db), aside  # in this order: a count sweeps when it has counted

    def _require_right(self, text: Any) -> int:
        """The number of a value that was given, which must be as it was put."""
        number = _number_in(str(text).encode())
        told = f"a take gave {text!r}, and there is {self._there}"
        assert self._there.get(number) == text, told
        assert number not in self._held, f"{told}, and {[*self._held]} are taken"
        return number

    def _require_aside(self) -> None:
        """Each damaged value was buried, or set aside with its bytes as they were; none of them stays."""
        db, q = self._client.db, self._handle.q
        stored, aside = {bytes(row.value) for row in self._rows()}, self._handle.aside(db)
        kept = [{bytes(value) for value in entry.values} for entry in aside]
        buried = self._delete_buried()
        told = f"{buried} damaged tasks are buried, {aside} were set aside, and there is {self._there}"
        assert buried + len(aside) == len(self._there), told
        assert all(harm in stored for harm in self._harmed.values()), told
        assert all(values & {*self._harmed.values()} for values in kept), told
        removed = [q.remove_aside(db, [entry.id]) for entry in aside]
        assert removed == [1] * len(aside), f"removals of entries: {removed}"
        assert (self._handle.count(db), q.unreadable(db)) == (0, 0)

    def _delete_buried(self) -> int:
        if not isinstance(self._handle, Tasks):
            return 0
        buried = self._handle.tasks(self._client.db, TaskState.BURIED)
        for task in buried:
            assert not is_readable(task.data), f"{task} is buried, and can be read"
            self._handle.q.delete(self._client.db, task)
        return len(buried)

    # Damage.

    def _rows(self) -> list[KeyValue]:
        under = self._handle.contents
        return list(self._client.db.get_range(under.start, under.stop))

    def _damage(self) -> None:
        """Damage a row of a value that has no damage yet."""
        whole = self._sound() - self._mendable
        rows = [row for row in self._rows() if _number_in(row.value) in whole]
        if rows:
            row = self._random.choice(rows)
            number, harm = _number_in(row.value), self._random.choice(self._handle.harms)(row.value)
            if self._has_copy(row, rows):
                self._mendable.add(number)
            else:
                self._harmed[number] = harm
            self._client.db[row.key] = harm

    def _has_copy(self, row: KeyValue, rows: Sequence[KeyValue]) -> bool:
        """True if the row has the record of a ready task, and another one has it, too."""
        id_ = row.key[-ID_BYTES:]
        copies = [one for one in rows if one.key.endswith(id_) and sound_record(one.value, id_)]
        return len(copies) > 1 and row in copies

    # Calls.

    def _answer(self, verb: Callable[[Any], Any]) -> Any:
        """Call with the database, or in a transaction that happens once."""
        if self._random.random() < WITHIN:
            return caught(lambda _: once(self._client, verb), None)
        return caught(verb, self._client.db)

    def _put(self) -> None:
        if len(self._there) > MOST:
            return
        texts: dict[int, str] = {}
        for _ in range(self._random.choice((1, 2, 3))):
            self._number += 1
            times = (20, 40) if self._random.random() < LARGE else (1, 3)
            texts[self._number] = f"<{self._number}>" * self._random.randint(*times)
        found = self._answer(lambda tr: self._handle.put(tr, [*texts.values()]))
        assert found is None, f"a put gave {found!r}"
        self._there |= texts

    def _take(self) -> None:
        self._answer_take(self._answer, self._random.choice((1, 1, 2, 4)))

    def _take_by(self, db: Any, count: int) -> None:
        self._answer_take(lambda verb: verb(db), count)

    def _answer_take(self, call: Callable[[Callable[[Any], Any]], Any], count: int) -> None:
        """A take gives values as they were put, if there is one that is ready and sound."""
        found = call(lambda tr: self._handle.take(tr, count))
        if isinstance(found, TooMuchToSweep):
            return  # a transaction may meet more damage than it can set aside
        assert isinstance(found, list), f"a take raised {found!r}"
        assert len(found) <= count, f"a take of {count} gave {found}"
        assert found or not self._ready(), f"a take gave nothing, and {self._ready()} are ready"
        for one in found:
            self._note_given(one)

    def _note_given(self, one: Any) -> None:
        text = one.data if isinstance(one, Task) else one
        number = self._require_right(text)
        self._mendable.discard(number)
        self._later.discard(number)
        if isinstance(one, Task):
            self._held[number] = one
        else:
            del self._there[number]
            assert number not in self._harmed, f"{text!r} was damaged, and was given"

    def _ready(self) -> set[int]:
        """The values that are ready: a take must give one of them."""
        ready = self._sound() - self._held.keys() - self._later
        if not isinstance(self._handle, Tasks) or not self._handle.is_keyed:
            return ready
        busy = {key_of(self._there[number]) for number in self._held.keys() | self._stuck}
        return {number for number in ready if key_of(self._there[number]) not in busy}

    def _settle(self) -> None:
        """End a lease. Damage may refuse it: then the task stays taken."""
        if not self._held:
            return
        number = self._random.choice([*self._held])
        q, task = self._handle.q, self._held.pop(number)
        verbs: Mapping[str, Callable[[Any], Any]] = {
            "ack": lambda tr: q.ack(tr, task),
            "release": lambda tr: q.release(tr, task),
            "bury": lambda tr: q.bury(tr, task),
            "defer": lambda tr: q.defer(tr, task, DELAY_S),
        }
        name = self._random.choice([*verbs])
        found = self._answer(verbs[name])
        if isinstance(found, FdbQueueError):
            assert number in self._harmed, f"{name} of {task} raised {found!r}"
            self._stuck.add(number)
        elif name == "ack":
            del self._there[number]
            self._harmed.pop(number, None)
        elif name in ("bury", "defer"):
            self._later.add(number)

    def _ack_all(self) -> None:
        for number, task in self._held.items():
            self._handle.q.ack(self._client.db, task)
            del self._there[number]
            self._harmed.pop(number, None)
        self._held = {}

    def _kick(self) -> None:
        """A kick leaves no task buried; in a transaction, more tasks than it may kick are refused."""
        if isinstance(self._handle, Tasks):
            found = self._answer(partial(self._handle.q.kick, count=MOST))
            if isinstance(found, TooMuchForOneTransaction) and limits.VERB_BATCH < MOST:
                return
            assert isinstance(found, int), f"a kick raised {found!r}"
            buried = self._handle.tasks(self._client.db, TaskState.BURIED)
            assert not buried, f"a kick left {buried}"

    def _look(self) -> None:
        """Listings show each sound value once, and no data of a damaged one. A task that becomes due between
        two pages may be listed twice, or not at all.
        """
        shown = filter(is_readable, self._handle.listed(self._client.db))
        listed = [_number_in(str(one).encode()) for one in shown]
        stay = [number for number in listed if number not in self._later]
        assert len({*stay}) == len(stay), f"listed twice: {listed}"
        assert {*listed} <= self._there.keys(), f"{listed} are listed, and there is {self._there}"
        missing = self._sound() - self._mendable - self._later - {*listed}
        assert not missing, f"{missing} are not listed"


def _number_in(value: bytes) -> int:
    """The number of the value in a text or a stored row; 0 without one."""
    found = _MARK.search(value)
    return int(found[1]) if found else 0
