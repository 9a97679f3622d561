"""Groups of members in two queues, one of them under two limits, in one process with a model.

Its clock stands still in each call. The progress of each group, the tasks of `then`, and the used and free
slots and tokens equal those of the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import inf
from random import Random
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task, TaskState
from fdbqueue.tasks.groups import Group, GroupProgress, list_groups
from fdbqueue.tasks.limits.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Simulation
from tests.system.workloads.common import draw_limits, unswept
from tests.system.workloads.exact_model import (
    Caller,
    Verb,
    added,
    caught,
    earliest,
    is_over,
    micro,
    require_equal,
    seconds,
    step_by_step,
)

SECOND = 1_000_000


@dataclass
class Then:
    """The task of `then` of a group. Its ttl begins with its start, if it is not buried by then."""

    id: str
    ttl: int | None
    expires: int | None
    state: str = "~"
    waits: bool = True

    def start(self, now: int) -> None:
        self.waits = False
        if self.state == "~":
            self.state, self.expires = "r", added(now, self.ttl)

    def kick(self) -> None:
        self.state = "~" if self.waits else "r"

    def is_over(self, now: int) -> bool:
        return self.state in "r!" and is_over(self.expires, now)


@dataclass
class Gathered:
    """A group. Times are microseconds."""

    id: str
    holds: bool
    then: Then | None = None
    retain: int = 0
    total: int = 0
    done: int = 0
    failed: int = 0
    is_open: bool = True
    cancelled: bool = False
    ended: int | None = None
    over: int | None = None
    """The time of the next look at an ended group: it is forgotten without buried members."""

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed


@dataclass
class Member:
    id: str
    group: Gathered | None
    due: int | None = None
    expires: int | None = None
    state: str = "r"
    until: int | None = None
    counted: bool = False
    marked: bool = False
    is_apart: bool = False
    """In the second queue, which has no limits."""


@dataclass
class Tokens:
    """A limit of starts with one cell: `full` is the time at which it has its whole burst."""

    rate: int
    per: int
    burst: int
    full: int = 0

    @property
    def span(self) -> int:
        return self.per // self.rate

    def free(self, now: int) -> int:
        return max(0, self.burst - -(-max(0, self.full - now) // self.span))

    def next(self, now: int) -> int | None:
        return None if self.free(now) else self.full - (self.burst - 1) * self.span

    def use(self, count: int, now: int) -> None:
        self.full = max(self.full, now) + count * self.span


@dataclass
class Books:
    """All members in order, all groups, and the slots. Both queues have members of the same groups."""

    ttr: int
    tokens: Tokens
    slots: int
    looked_at_every: int
    now: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    groups: dict[str, Gathered] = field(default_factory=dict)
    thens: dict[str, Then] = field(default_factory=dict)
    """The tasks of `then` that are still there: they may outlive their groups."""

    def taken(self) -> list[Member]:
        return [one for one in self.members.values() if one.state == "t"]

    def started(self) -> list[Member]:
        """Those that hold a slot."""
        return [one for one in self.taken() if not one.is_apart]

    def ready(self, is_apart: bool = False) -> list[Member]:
        return [one for one in self.members.values() if one.state == "r" and one.is_apart == is_apart]

    def may_start(self) -> int:
        return min(max(0, self.slots - len(self.started())), self.tokens.free(self.now))

    def lease(self, one: Member) -> None:
        ends = [end for end in (self.now + self.ttr, one.expires) if end is not None]
        one.state, one.until = "t", min(ends)
        if not one.is_apart:
            self.tokens.use(1, self.now)

    def gone(self, one: Member, acked: bool = False) -> None:
        del self.members[one.id]
        if (group := one.group) is not None:
            group.done += acked
            if one.counted:
                group.failed -= acked
            elif not acked:
                group.failed += 1

    def back(self, one: Member, delay: int = 0) -> None:
        if one.marked:
            self.gone(one)
            return
        one.state, one.until = "r", None
        if delay:
            one.state, one.due, one.expires = "~", self.now + delay, added(one.expires, delay)

    def bury(self, one: Member) -> None:
        if one.marked:
            self.gone(one)
            return
        one.state, one.until = "!", None
        if one.group is not None and not one.group.holds and not one.counted:
            one.counted = True
            one.group.failed += 1

    def sweep(self) -> None:
        """All that sweeps do, until there is nothing more to do."""
        for one in [*self.members.values()]:
            if one.state == "t" and is_over(one.until, self.now):
                self.back(one)
            elif one.state == "~" and is_over(one.due, self.now):
                one.state = "r"
        for one in [*self.members.values()]:
            if one.state in "r!" and is_over(one.expires, self.now):
                self.gone(one)
        for one in [one for one in self.members.values() if one.group is not None and one.group.cancelled]:
            if one.state == "t":
                one.marked = True
            else:
                self.gone(one)
        for group in [*self.groups.values()]:
            self._settle(group)
        self.thens = {id_: then for id_, then in self.thens.items() if not then.is_over(self.now)}

    def _settle(self, group: Gathered) -> None:
        if group.ended is None and group.left <= 0 and (group.cancelled or not group.is_open):
            group.ended, group.is_open, group.over = self.now, False, self.now + group.retain
            assert group.then is not None  # each group of this workload has one
            if group.cancelled:
                self.thens.pop(group.then.id, None)
            else:
                group.then.start(self.now)
        while group.id in self.groups and is_over(group.over, self.now):
            if any(one.group is group for one in self.members.values()):
                group.over = self.now + self.looked_at_every
            else:
                del self.groups[group.id]


VERBS = (
    "gather",
    *("put",) * 4,
    "close",
    "cancel",
    *("take",) * 4,
    *("end",) * 6,
    "manage",
    "kick",
    "answer",
    "change",
)
RARE = 0.04
NAME, APART, THEN, SLOTS, STARTS = (
    "exact_groups",
    "exact_groups_apart",
    "exact_groups_then",
    "slots",
    "starts",
)
TTR_S, AGAIN_S = 4, 1.5
See = Callable[[Callable[[Any], Any]], Any]


# The model fills each answer and lets all groups end at once: no bound cuts that short.
@workload(
    clients=1,
    steps=60,
    never=("die", "stall", "slow_reply", "clock_skew_s"),
    wide=("BATCH_HOLDERS_BYTES_MAX", "GROUPS_ENDED_MAX", "SERVE_BYTES_MAX", "SERVE_MAX"),
)
def exact_groups(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact groups")
    unswept(simulation, None)
    simulation.limit(GROUP_LOOKED_AT_EVERY_S=AGAIN_S)
    draw_limits(simulation, random, DUE_BATCH=(1, 3, 8), VERB_BATCH=(2, 8), GROUPS_SWEPT_MAX=(1, 8))
    step_by_step(simulation, size, lambda client: Process(Caller(client)), NAME)
    return [no_watch_left_behind]


# Calls.


class Deeds:
    def __init__(self, caller: Caller) -> None:
        self._caller, self.random, db = caller, caller.random, caller.client.db
        tokens = Tokens(self.random.choice((1, 4)), 8 * SECOND, self.random.choice((2, 3, 7)))
        self.books = Books(TTR_S * SECOND, tokens, 3, round(AGAIN_S * SECOND), caller.clock.now)
        Limit.set(db, SLOTS, slots=self.books.slots)
        Limit.set(db, STARTS, rate=tokens.rate, per=tokens.per / SECOND, burst=tokens.burst)
        self.q = TaskQueue.create(db, NAME, "fifottl", ttr=TTR_S, if_not_exists=True, limits=(SLOTS, STARTS))
        self.apart = TaskQueue.create(db, APART, "fifottl", ttr=TTR_S, if_not_exists=True)
        self.then = TaskQueue.create(db, THEN, "fifottl", if_not_exists=True)
        self._session = Session(db, ttr=inf)
        self._leases: dict[str, Task] = {}

    def _either(self) -> tuple[bool, TaskQueue]:
        """The second queue (True), or the first one."""
        is_apart = self.random.random() < 0.3
        return is_apart, self._queue(is_apart)

    def _queue(self, is_apart: bool) -> TaskQueue:
        return self.apart if is_apart else self.q

    def _done(self, verb: Verb) -> None:
        found = self._caller.answer(verb)
        assert not isinstance(found, Exception), f"refused: {found!r}"

    def gather(self) -> None:
        holds, ttl, retain = (
            self.random.random() < 0.5,
            self.random.choice((None, 3)),
            self.random.choice((2, 60)),
        )
        then = (self.then, "then", {"ttl": ttl})
        made = self._caller.answer(
            lambda tr: Group.create(tr, then=then, wait_for_buried=holds, retain_s=retain)
        )
        told = made.progress(self._caller.client.db)
        then_one = Then(told.then, micro(ttl), added(self.books.now, micro(ttl)))
        self.books.groups[made.id] = Gathered(made.id, holds, then_one, retain * SECOND)
        self.books.thens[then_one.id] = then_one

    def _group(self) -> Gathered | None:
        return self.random.choice([*self.books.groups.values(), None])

    def put(self) -> None:
        group, count = self._group(), self.random.choice((1, 1, 2))
        delay, ttl = self.random.choice((0, 0, 0, 2)), self.random.choice((None, None, 3, 9))
        known, (is_apart, q) = None if group is None else group.id, self._either()
        found = self._caller.answer(
            lambda tr: q.put_many(tr, range(count), delay=delay, ttl=ttl, group=known)
        )
        if group is not None and (group.cancelled or not group.is_open):
            assert type(found).__name__ == "GroupClosed", f"a put into a closed group: {found}"
            return
        for task in found:
            due = self.books.now + delay * SECOND
            expires = added(due, micro(ttl))
            state = "~" if delay else "r"
            self.books.members[task.id] = Member(task.id, group, due, expires, state, is_apart=is_apart)
        if group is not None:
            group.total += count

    def close(self) -> None:
        if (group := self._group()) is not None:
            self._done(Group(group.id).close)
            group.is_open = False

    def cancel(self) -> None:
        if (group := self._group()) is not None and self.random.random() < 0.5:
            self._done(Group(group.id).cancel)
            group.cancelled = group.cancelled or group.ended is None

    def take(self) -> None:
        count, (is_apart, q) = self.random.choice((1, 2, 3)), self._either()
        found = self._caller.answer(lambda tr: q.take_many(tr, count, session=self._session))
        most = count if is_apart else min(count, self.books.may_start())
        wanted = self.books.ready(is_apart)[:most]
        require_equal("taken", [task.id for task in found], [one.id for one in wanted])
        for one in wanted:
            self.books.lease(one)
        self._leases |= {task.id: task for task in found}

    def end(self) -> None:
        if taken := self.books.taken():
            one, verb = (
                self.random.choice(taken),
                self.random.choice(("ack", "ack", "release", "bury", "delete")),
            )
            task = self._leases[one.id]
            delay = self.random.choice((0, 2)) if verb == "release" else 0
            options = {"delay": delay} if delay else {}
            self._done(lambda tr: getattr(self._queue(one.is_apart), verb)(tr, task, **options))
            self._change(verb, one, delay * SECOND)

    def _change(self, verb: str, one: Member, delay: int = 0) -> None:
        if verb == "release":
            self.books.back(one, delay)
        elif verb == "bury":
            self.books.bury(one)
        else:
            self.books.gone(one, verb == "ack")

    def manage(self) -> None:
        rest = [one for one in self.books.members.values() if one.state != "t"]
        if rest:
            one, verb = self.random.choice(rest), self.random.choice(("bury", "bury", "delete", "cancel"))
            self._done(lambda tr: getattr(self._queue(one.is_apart), verb)(tr, one.id))
            if one.state != "!" or verb != "bury":
                self._change(verb, one)

    def kick(self) -> None:
        is_apart, q = self._either()
        there = [one for one in self.books.members.values() if one.is_apart == is_apart]
        buried = [one for one in there if one.state == "!"]
        found = self._caller.answer(lambda tr: q.kick(tr, 50), always_alone=True)
        require_equal("kicked", found, len(buried))
        for one in buried:
            one.state = "r"

    def answer(self) -> None:
        """Bury the task of `then` of a group, remove it, or kick all that are buried."""
        thens, verb = self.books.thens, self.random.choice(("bury", "bury", "kick", "kick", "delete"))
        buried = [then for then in thens.values() if then.state == "!"]
        if verb == "kick":
            found = self._caller.answer(lambda tr: self.then.kick(tr, 50), always_alone=True)
            require_equal("kicked", found, len(buried))
            for then in buried:
                then.kick()
        elif thens:
            one = thens[self.random.choice(list(thens))]
            self._done(lambda tr: getattr(self.then, verb)(tr, one.id))
            if verb == "bury":
                one.state = "!"
            else:
                del thens[one.id]

    def change(self) -> None:
        if self.random.random() < 0.3:
            self.books.slots = slots = self.random.choice((1, 2, 4, 9))
            self._done(lambda tr: Limit.set(tr, SLOTS, slots=slots))

    def truncate(self) -> None:
        is_apart, q = self._either()
        self._done(q.truncate)
        for one in [one for one in self.books.members.values() if one.is_apart == is_apart]:
            self.books.gone(one)


class Process(Deeds):
    def step(self) -> None:
        self._move()
        verb = "truncate" if self.random.random() < RARE else self.random.choice(VERBS)
        getattr(self, verb)()
        self._settle()
        if self.random.random() < 0.5:
            require_all(self._caller, (self.q, self.apart), self.then, self.books, (SLOTS, STARTS))

    def _move(self) -> None:
        books, random = self.books, self.random
        ends = [end for one in books.members.values() for end in (one.due, one.until, one.expires)]
        ends += [books.tokens.next(books.now), *(group.over for group in books.groups.values())]
        ends += [then.expires for then in books.thens.values()]
        following = earliest(*(end for end in ends if end is not None and end > books.now))
        if random.random() < 0.4 and following is not None:
            books.now = following - random.choice((0, 0, 1))
            self._caller.clock.move_to(books.now)
            self._settle()

    def _settle(self) -> None:
        self.books.sweep()
        for _ in range(4):  # an end of a member lets its group end, and that lets another sweep forget it
            self._caller.tick()


# Looks.


def require_all(
    caller: Caller, queues: tuple[TaskQueue, TaskQueue], then: TaskQueue, books: Books, names: tuple[str, str]
) -> None:
    """Compare all looks with the model. `queues`: the one under limits, and the other one.

    Raises: AssertionError.
    """
    see: See = partial(run, caller.client.db)
    _require_groups(see(list_groups), books)
    for group in books.groups.values():
        assert group.then is not None  # each group of this workload has one
        peek = partial(_peek, then, group.then.id)
        _require_then(see(partial(caught, peek)), group.id, group.then, books)
    _require_limits(see, books, names)
    for (is_apart, q), state in product(enumerate(queues), "rt!~"):
        found = [task.id for task in see(partial(q.tasks, state=state, limit=100))]
        there = [one for one in books.members.values() if one.is_apart == bool(is_apart)]
        wanted = [one.id for one in there if one.state == state]
        require_equal(f"tasks {state} of {q.name}", sorted(found), sorted(wanted))
    if ready := books.ready():
        explained = see(lambda tr: queues[0].explain(tr, ready[-1].id))
        _require_reached(explained.reached, books, names)


def _peek(then: TaskQueue, id_: str, tr: Any) -> Task:
    return then.peek(tr, id_)


def _require_groups(found: list[GroupProgress], books: Books) -> None:
    require_equal("groups", sorted(one.id for one in found), sorted(books.groups))
    for one in found:
        group = books.groups[one.id]
        buried = sum(of.group is group and of.state == "!" for of in books.members.values())
        counts = (one.total, one.done, one.failed, one.left, one.buried, one.open, one.cancelled, one.ended)
        is_open = group.is_open and not group.cancelled
        wanted = (group.total, group.done, group.failed, group.left, buried, is_open)
        require_equal(f"the group {one.id}", counts, (*wanted, group.cancelled, seconds(group.ended)))


def _require_then(found: Any, group: str, then: Then, books: Books) -> None:
    """The task of `then` waits, or is ready with a ttl from the end of the group on, or is buried, or has
    gone.
    """
    if then.id not in books.thens:
        assert isinstance(found, TaskNotFound), f"the task of the group {group}: {found}"
        return
    assert isinstance(found, Task), f"the task of the group {group}: {found!r}"
    told = (found.state, found.waits_for)
    require_equal("then", told, (TaskState(then.state), group if then.waits else None))
    if then.state == "r":
        require_equal("the ttl of then", found.expires, seconds(then.expires))


def _require_limits(see: See, books: Books, names: tuple[str, str]) -> None:
    slots, starts = (see(partial(Limit.open, name=name)) for name in names)
    used, now = len(books.started()), books.now
    require_equal(
        "slots", (slots.slots, slots.used, slots.free), (books.slots, used, max(0, books.slots - used))
    )
    holders = sorted(holder.task for holder in slots.holders)
    require_equal("holders", holders, sorted(one.id for one in books.started()))
    tokens = (books.tokens.free(now), seconds(books.tokens.next(now)))
    require_equal("tokens", (starts.free, starts.next), tokens)


def _require_reached(found: Any, books: Books, names: tuple[str, str]) -> None:
    free = (max(0, books.slots - len(books.started())), books.tokens.free(books.now))
    wanted = [name for name, few in zip(names, free, strict=True) if not few]
    require_equal("limits that are reached", sorted(one.name for one in found), wanted)
