"""Limits: tasks under slots, of all tasks and of each key, and under a rate of starts of each key."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.limits.limit import Limit
from tests.system.soak.client import Client
from tests.system.soak.evidence import Evidence, Held, key_of
from tests.system.soak.order import in_turn_by_key
from tests.system.soak.rules import LEASED
from tests.system.soak.subjects.leases import Leased, stored_in

COLOURS = ("red", "green", "blue")
PUT_MAX = 5
"""Values in a put: limits end fewer than the other subjects do."""
OF_ALL, OF_KEY, STARTS = "soak of all", "soak of a key", "soak starts"
SLOTS, KEY_SLOTS = (4, 5), (1, 2)
"""The numbers of slots that a limit has in turn."""
RATE, PER_S, BURST = 30, 1.0, 5
WINDOWS_S = (1.0, 5.0)


def over_all_slots(evidence: Evidence) -> Iterator[str]:
    """At no moment more tasks are proved to be held than the limit of all tasks has slots."""
    return _over(evidence.held, lambda _: OF_ALL, max(SLOTS))


def over_key_slots(evidence: Evidence) -> Iterator[str]:
    """At no moment more tasks of a key are proved to be held than the limit has slots for it."""
    return _over(evidence.held, lambda held: key_of(held.value), max(KEY_SLOTS))


def _over(all_held: Iterable[Held], group: Callable[[Held], str], slots: int) -> Iterator[str]:
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for held in all_held:
        changes[group(held)] += [(held.from_us, 1), (held.until_us, -1)]
    for name, each in sorted(changes.items()):
        most, now = 0, 0
        for _, change in sorted(each):  # of two at one moment, an end is before a begin
            now += change
            most = max(most, now)
        if most > slots:
            yield f"{most} tasks under the {slots} slots of {name}"


def over_rate(evidence: Evidence) -> Iterator[str]:
    """No window of time has more whole takes of a key than its burst and the tokens of that time."""
    starts: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for taken in evidence.taken:
        starts[key_of(taken.value)].append((taken.call.begin_us, taken.end_us))
    for key, takes in sorted(starts.items()):
        for window_s in WINDOWS_S:
            most, tokens = _most_within(sorted(takes), window_s), BURST + round(RATE * window_s / PER_S)
            if most > tokens:
                yield f"{most} starts of {key} within {window_s} s, with {tokens} tokens"


def _most_within(takes: Sequence[tuple[int, int]], window_s: float) -> int:
    """The largest number of takes that begin and end within a window. `takes`: in order of their begins."""
    most, window_us = 0, round(window_s * 1e6)
    for first, (from_us, _) in enumerate(takes):
        inside = 0
        for begin_us, end_us in takes[first:]:
            if begin_us > from_us + window_us:
                break
            inside += end_us <= from_us + window_us
        most = max(most, inside)
    return most


class _Limited(Leased):
    """Each task names a limit with its colour as the key."""

    keys = COLOURS
    limit: str

    def options(self) -> Mapping[str, Any]:
        return {"task_limits": [self.limit]}

    def put_options(self, key: str) -> Mapping[str, Any]:
        return {"limits": {self.limit: key}}

    def put(self, client: Client, count: int) -> None:
        super().put(client, min(count, PUT_MAX))


class Slots(_Limited):
    """The numbers of slots change."""

    name = "slots"
    rules = (*LEASED, in_turn_by_key, over_all_slots, over_key_slots)
    limit = OF_KEY

    def prepare(self, db: Database) -> None:
        self._set(db, OF_ALL, max(SLOTS))
        self._set(db, OF_KEY, max(KEY_SLOTS))
        super().prepare(db)

    def _set(self, db: Database, name: str, slots: int) -> None:
        Limit.set(db, name, slots=slots, per_key=name == OF_KEY, root=self.setup.queues)

    def options(self) -> Mapping[str, Any]:
        return {**super().options(), "limits": [OF_ALL]}

    def step(self, client: Client) -> None:
        if client.chance(0.02):
            name, numbers = client.random.choice(((OF_ALL, SLOTS), (OF_KEY, KEY_SLOTS)))
            self._set(client.db, name, client.random.choice(numbers))
        super().step(client)

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        running = len(stored_in(db, self.queue, TaskState.TAKEN))
        used = {name: Limit.open(db, name, root=self.setup.queues).used for name in (OF_ALL, OF_KEY)}
        return {
            **super().counters(db, left),
            **{f"slots of {name}": (number, running) for name, number in used.items()},
        }


class Rates(_Limited):
    name = "rates"
    rules = (*LEASED, in_turn_by_key, over_rate)
    limit = STARTS

    def prepare(self, db: Database) -> None:
        root = self.setup.queues
        Limit.set(db, STARTS, rate=RATE, per=PER_S, burst=BURST, per_key=True, root=root)
        super().prepare(db)
