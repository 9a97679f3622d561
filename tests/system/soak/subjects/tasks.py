"""Task queues: of each kind, with keys, under limits, in groups, and filled by schedules.

    group    members and then   a group is made, and closed, in one transaction
    open     then               an open group is made
    close    label              the group takes no more members
    cancel   label              its members and its `then` end by sweeps

The label of a group is the key of its values: "w0.7/0" is a member of the group "w0.7", "w0.7/then" its task.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

from fdbqueue.core.database import Database
from fdbqueue.core.errors import RepartitionUnderWay
from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Renewed, Task, TaskState
from fdbqueue.core.transactional import transactional
from fdbqueue.tasks.firing import ScheduleStatus
from fdbqueue.tasks.groups import Group, group, list_groups
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.schedules import Schedule
from fdbqueue.testing.history import REFUSED
from tests.system.soak.client import PAGE_ROWS, Client, Subject
from tests.system.soak.rules import (
    LEASED,
    SOUND,
    Evidence,
    Held,
    Rule,
    by_priority,
    ends_in_turn,
    found,
    given_too_early,
    held_twice,
    in_turn,
    in_turn_by_key,
    key_of,
    lost,
    lost_but,
    one_at_a_time,
)

ENDED_ALONE_MAX = 5
STORED_STATES = (TaskState.READY, TaskState.TAKEN, TaskState.DELAYED, TaskState.BURIED)


STATES = ("ready", "taken", "delayed", "buried")
ENDED = ("acked", "expired", "deleted", "cancelled")


def stored_in(db: Database, queue: TaskQueue, state: TaskState) -> list[Task]:
    return list(every_row(partial(queue.tasks, db, state, PAGE_ROWS)))


def _refusal(task: Task, renewed: Renewed) -> str | None:
    """The note of a renewal: a lease that is over was not renewed."""
    return None if task.id in renewed else REFUSED


class Leased(Subject):
    """Tasks with leases that are acked, released, renewed, or let lapse."""

    kind: ClassVar[str] = "fifottl"
    keys: ClassVar[Sequence[str]] = ("",)
    rules: ClassVar[Sequence[Rule]] = (*LEASED, in_turn)

    def prepare(self, db: Database) -> None:
        TaskQueue.create(
            db, self.name, self.kind, ttr=self.setup.ttr_s, root=self.setup.queues, **self.options()
        )

    def options(self) -> Mapping[str, Any]:
        """More options of the queue."""
        return {}

    def open(self, db: Database) -> None:
        self.queue = TaskQueue.open(db, self.name, root=self.setup.queues)

    def put(self, client: Client, count: int) -> None:
        key = client.random.choice(self.keys_of(client))
        values = client.values(count, key)
        client.call(
            self.name, "put", values, lambda: self.queue.put_many(client.db, values, **self.put_options(key))
        )

    def keys_of(self, client: Client) -> Sequence[str]:  # noqa: ARG002
        """The keys of the values that a client puts."""
        return self.keys

    def put_options(self, key: str) -> Mapping[str, Any]:  # noqa: ARG002
        return {}

    def take(self, client: Client, count: int) -> bool:
        wait_s = client.wait_s()
        tasks = client.call(
            self.name,
            "take",
            count,
            lambda: self.queue.take_many(client.db, count, wait_s),
            shown=lambda tasks: [self._lease_of(task) for task in tasks],
        )
        if tasks:
            self._end(client, tasks)
        return bool(tasks)

    def _end(self, client: Client, tasks: Sequence[Task]) -> None:
        if client.chance(0.05):
            return  # the leases lapse
        if client.chance(0.1):
            self._renew(client, tasks)
        few: Sequence[Task] = ()
        if client.chance(0.1):
            few = tasks[:ENDED_ALONE_MAX]
            self._each(client, "release", few)
        elif client.chance(0.3):
            few = tasks[:ENDED_ALONE_MAX]
            self._each(client, "ack", few)
        rest = tasks[len(few) :]
        if rest:
            leases = [self._lease_of(task) for task in rest]
            client.call(self.name, "finish", leases, partial(self._finish, client, rest))

    def _renew(self, client: Client, tasks: Sequence[Task]) -> None:
        for task in tasks[:ENDED_ALONE_MAX]:
            client.call(
                self.name,
                "renew",
                [self._lease_of(task)],
                partial(self.queue.renew, client.db, [task]),
                shown=partial(_refusal, task),
            )

    def _each(self, client: Client, verb: str, tasks: Sequence[Task]) -> None:
        call = self.queue.release if verb == "release" else self.queue.ack
        for task in tasks:
            client.call(self.name, verb, [self._lease_of(task)], partial(call, client.db, task))

    def _finish(self, client: Client, tasks: Sequence[Task]) -> None:
        """Ack the tasks, and count an effect of each in the same transaction."""

        @transactional
        def finish(tr: Transaction) -> None:
            for task in tasks:
                self.queue.ack(tr, task)
            client.effect(tr, self.name, [self.value_of(task) for task in tasks])

        finish(client.db)

    def value_of(self, task: Task) -> str:
        return str(task.data)

    def _lease_of(self, task: Task) -> list[str]:
        return [self.value_of(task), "" if task.token is None else task.token.hex()]

    def left(self, db: Database) -> list[str]:
        return [self.value_of(task) for state in STORED_STATES for task in stored_in(db, self.queue, state)]

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        told = self.queue.statistics(db)
        tasks, calls, ends = told["tasks"], told["calls"], told["ends"]
        ended = sum(ends[name] for name in ENDED)
        return {
            "tasks": (tasks["total"], len(left)),
            "tasks by state": (sum(tasks[name] for name in STATES), len(left)),
            "tasks done": (tasks["done"], ended),
            "acked tasks": (ends["acked"], calls["ack"]),
            "tasks put": (calls["put"], tasks["done"] + len(left)),
        }

    def totals(self, db: Database) -> Mapping[str, int]:
        calls = self.queue.statistics(db)["calls"]
        return {"puts": calls["put"], "acks": calls["ack"]}


class Leases(Leased):
    name = "leases"


class Bags(Leased):
    name = "bags"
    kind = "bag"
    rules = LEASED


BRIEF = "9"
"""The priority of the values that expire."""


def lost_but_brief(evidence: Evidence) -> Iterator[str]:
    return lost_but(evidence, lambda value: key_of(value) == BRIEF)


class Priorities(Leased):
    """Priorities are keys of values. Values of the last priority live for the time of one lease only."""

    name = "priorities"
    keys = ("0", "1", "2", BRIEF)
    rules = (*(lost_but_brief if rule is lost else rule for rule in LEASED), by_priority)

    def keys_of(self, client: Client) -> Sequence[str]:
        return self.keys[:-1] if client.calm else self.keys

    def put_options(self, key: str) -> Mapping[str, Any]:
        return {"pri": int(key), "ttl": self.setup.ttr_s if key == BRIEF else None}


KEYS = ("red", "green", "blue", "white", "grey", "black", "brown", "pink")


class Coloured(Leased):
    """Tasks with a key, by which they are in order."""

    keys = KEYS

    def put_options(self, key: str) -> Mapping[str, Any]:
        return {"key": key}


class Keyed(Coloured):
    """At most one task of a key is taken at a time, so all of its tasks end in order."""

    name = "keyed"
    kind = "utubettl"
    rules: ClassVar[Sequence[Rule]] = (*LEASED, in_turn_by_key, ends_in_turn, one_at_a_time)


class FairTasks(Coloured):
    name = "fairtasks"
    kind = "fair"
    rules = (*LEASED, in_turn_by_key)

    def options(self) -> Mapping[str, Any]:
        return {"weights": {"red": 3}}


class Partitions(Keyed):
    """As keyed, in partitions. Their number changes."""

    name = "partitions"
    numbers: ClassVar[Sequence[int]] = (1, 2, 3, 5)

    def options(self) -> Mapping[str, Any]:
        return {"partitions": 3}

    def step(self, client: Client) -> None:
        if client.chance(0.02):
            with suppress(RepartitionUnderWay):
                self.queue.repartition(client.db, client.random.choice(self.numbers))
        super().step(client)


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


CONCURRENCY = (1, 2)
"""The numbers of tasks of a key at a time that a queue has in turn."""


def over_concurrency(evidence: Evidence) -> Iterator[str]:
    """At no moment more tasks of a key are proved to be held than the queue ever allows."""
    return _over(evidence.held, lambda held: f"the key {key_of(held.value)}", max(CONCURRENCY))


class Altered(Coloured):
    """As keyed. The number of tasks of a key at a time changes."""

    name = "altered"
    kind = "utubettl"
    rules = (*LEASED, in_turn_by_key, over_concurrency)

    def step(self, client: Client) -> None:
        if client.chance(0.05):
            self.queue.alter(client.db, key_concurrency=client.random.choice(CONCURRENCY))
        super().step(client)


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


THEN = "then"


def lost_but_cancelled(evidence: Evidence) -> Iterator[str]:
    cancelled = {call.argument for call in evidence.named("cancel")}
    return lost_but(evidence, lambda value: key_of(value) in cancelled)


def each_then(evidence: Evidence) -> Iterator[str]:
    """The task of each closed group has ended, if the group was not cancelled."""
    cancelled = {call.argument for call in evidence.named("cancel")}
    closed = {call.argument for call, _ in evidence.succeeded("close")} - cancelled
    ended = {value for value, count in evidence.apart.items() if count} | set(evidence.stored.effects)
    ended |= evidence.perhaps_acked | set(evidence.stored.left)
    yield from found("no then", {f"{label}/{THEN}" for label in closed} - ended)


def then_is_last(evidence: Evidence) -> Iterator[str]:
    """The task of `then` is not given before each member has ended."""
    first_us: dict[str, int] = {}
    for taken in evidence.taken:
        if taken.value.endswith(f"/{THEN}"):
            label = key_of(taken.value)
            first_us[label] = min(taken.end_us, first_us.get(label, taken.end_us))
    for value, calls in evidence.ends.items():
        given_us = first_us.get(key_of(value))
        is_member = not value.endswith(f"/{THEN}")
        if given_us is not None and is_member and min(call.begin_us for call in calls) > given_us:
            yield f"then was given before the end of {value}"


class Groups(Leased):
    name = "groups"
    rules = (*(lost_but_cancelled if rule is lost else rule for rule in LEASED), each_then, then_is_last)
    has_order = False

    def put(self, client: Client, count: int) -> None:
        [label] = client.values(1)
        members = [f"{label}/{number}" for number in range(count)]
        if client.chance(0.5):
            values = [*members, f"{label}/{THEN}"]
            client.call(self.name, "group", values, lambda: self._make(client, label, members))
        else:
            self._fill(client, label, members)

    def _make(self, client: Client, label: str, members: list[str]) -> None:
        mark = self.setup.space["groups"][label].key()

        @transactional
        def make(tr: Transaction) -> None:
            if tr.get(mark).present():
                return  # an earlier attempt, with an unknown result, has made it
            tr.set(mark, b"")
            with group(tr, then=(self.queue, f"{label}/{THEN}"), root=self.setup.queues) as made:
                made.put_many(self.queue, members)

        make(client.db)

    def _fill(self, client: Client, label: str, members: list[str]) -> None:
        """Make a group in several transactions. After a kill in between, the end of the soak closes it."""
        then = f"{label}/{THEN}"
        made = client.call(self.name, "open", [then], lambda: self._create(client, then))
        if made is None:
            return
        half = len(members) // 2
        for values in filter(None, (members[:half], members[half:])):
            client.call(self.name, "put", values, partial(made.put_many, client.db, self.queue, values))
        verb = "cancel" if client.chance(0.1) else "close"
        client.call(self.name, verb, label, lambda: getattr(made, verb)(client.db))

    def _create(self, client: Client, then: str) -> Group:
        return Group.create(client.db, then=(self.queue, then), root=self.setup.queues)

    def settle(self, client: Client) -> None:
        for told in every_row(partial(list_groups, client.db, 100, root=self.setup.queues)):
            if told.open and told.then is not None:
                self._close(client, told.id, told.then)

    def _close(self, client: Client, id_: str, then: str) -> None:
        label, made = key_of(self.queue.peek(client.db, then).data), Group(id_, root=self.setup.queues)
        client.call(self.name, "close", label, lambda: made.close(client.db))


PERIODS_S = (1.0, 1.25, 1.5, 2.0)
"""The distances of the due times of the schedules."""


def each_due_time(evidence: Evidence) -> Iterator[str]:
    """Between the first and the last due time of a schedule, no due time is left out."""
    ended = {value for value, count in evidence.apart.items() if count} | set(evidence.stored.effects)
    by_schedule: dict[str, list[datetime]] = {}
    for value in ended | evidence.perhaps_acked | set(evidence.stored.left):
        by_schedule.setdefault(key_of(value), []).append(datetime.fromisoformat(value.rpartition("/")[2]))
    for name, times in sorted(by_schedule.items()):
        for before, after in pairwise(sorted(times)):
            if abs((after - before).total_seconds() - float(name)) > 0.001:
                yield f"no task for a due time of every {name} s between {before} and {after}"


class Schedules(Leased):
    """The value of a task is the period and the due time."""

    name = "schedules"
    rules = (*SOUND, held_twice, given_too_early, each_due_time)
    has_order = False

    def prepare(self, db: Database) -> None:
        super().prepare(db)
        for period_s in PERIODS_S:
            Schedule.create(
                db, str(period_s), every=period_s, queue=self.name, missed="all", root=self.setup.queues
            )

    def value_of(self, task: Task) -> str:
        return f"{task.headers['schedule']}/{task.headers['scheduled-for']}"

    def put(self, client: Client, count: int) -> None:
        """The schedules put."""

    def settle(self, client: Client) -> None:
        for period_s in PERIODS_S:
            self._schedule(client.db, period_s).pause(client.db)

    def _schedule(self, db: Database, period_s: float) -> Schedule:
        return Schedule.open(db, str(period_s), root=self.setup.queues)

    def counters(self, db: Database, left: Sequence[str]) -> Mapping[str, tuple[int, int]]:
        told = [self._schedule(db, period_s).status(db) for period_s in PERIODS_S]
        fired = {f"due times of every {one.name} s": (one.fired, _due_times(one)) for one in told}
        puts = self.queue.statistics(db)["calls"]["put"]
        all_fired = sum(status.fired for status in told)
        return {**super().counters(db, left), **fired, "tasks of schedules": (puts, all_fired)}

    def totals(self, db: Database) -> Mapping[str, int]:
        return {"acks": super().totals(db)["acks"]}


def _due_times(status: ScheduleStatus) -> int:
    """The number of due times from the creation to the last one. The first is at most a period later."""
    if status.last_due is None or status.every is None:
        return 0
    return int((status.last_due - status.created) / status.every) + 1
