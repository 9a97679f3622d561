"""As `exact`, with several features of a queue at once: states in which two of them meet.

Each run draws its own verbs, and how often it makes each. So some runs bury and never ack, some cancel, some
change the number of partitions with every third call. In the model, a sweep settles the groups, too: a
cancelled one ends its members, and an ended one lets its task start.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import run
from fdbqueue.core.errors import GroupClosed, GroupNotFound, NotBuried, RepartitionUnderWay, TaskNotFound
from fdbqueue.core.partitions import home_of
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.groups import Group, GroupProgress
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.tasks.stored.records import id_bytes, partition_of
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.simulation import Checker, Simulation
from fdbqueue.testing.trace import unsound
from tests.system.workloads.common import cramped, draw_limits, unswept
from tests.system.workloads.exact import Kinds, Process, one_process
from tests.system.workloads.exact_groups import Gathered
from tests.system.workloads.exact_model import (
    Caller,
    Life,
    Model,
    added,
    caught,
    is_over,
    put,
    require_equal,
    right,
)
from tests.system.workloads.exact_verbs import KEYED, LEASES, Many, Verbs, of_holder

WISHES = ("", "", "unique", "group", "after")
LIKED = 0.5
GROUPS_MAX = 10
OTHER, RATE_PER_S = "exact_mixed, other", 1e9
STATES = {"r": "ready", "t": "taken", "~": "delayed"}


class MixedModel(Model):
    def __init__(self, kind: str, options: dict[str, Any]) -> None:
        super().__init__(kind, options)
        self.groups: dict[str, Gathered] = {}
        self.away: list[dict[str, bool]] = []
        """The groups of each task that a redrive has moved into the other queue, in order."""

    def in_state(self, state: str) -> list[Life]:
        """As in `exact`. In its partition, a task that has moved there comes before those put there."""
        found = super().in_state(state)
        if state == "r" and self.is_parted and self.kind in KEYED:
            found.sort(key=lambda life: (life.pri, self._is_at_home(life), life.id))
        return found

    def _is_at_home(self, life: Life) -> bool:
        home = home_of(key_bytes(life.key), self.options["partitions"])
        return partition_of(id_bytes(life.id)) == home

    # Members.

    def join(self, life: Life, group: Gathered) -> None:
        life.groups[group.id] = False
        group.total += 1
        if life.state == "!":
            self._count_buried(life)

    def end(self, life: Life, call: str, outcome: str, value: Any = None) -> Task:
        self.count_off(life.groups, outcome == "acked")
        return super().end(life, call, outcome, value)

    def count_off(self, groups: dict[str, bool], acked: bool = False) -> None:
        for name, counted in groups.items():
            self.groups[name].done += acked
            self.groups[name].failed += (not acked) - counted

    def put_aside(self, life: Life) -> None:
        super().put_aside(life)
        self._count_buried(life)

    def _count_buried(self, life: Life) -> None:
        for name, counted in life.groups.items():
            if not counted and not self.groups[name].holds:
                life.groups[name] = True
                self.groups[name].failed += 1

    def kick(self, lives: Iterable[Life]) -> None:
        """As in `exact`. A task that waits for a group goes on waiting."""
        for life in lives:
            super().kick([life])
            life.state = "r" if life.waits is None else "~"

    def truncate(self) -> None:
        for life in self.lives.values():
            self.count_off(life.groups)
        super().truncate()

    def send_away(self, life: Life) -> None:
        """Move a buried task into another queue. It stays a member."""
        self.away.append(life.groups)
        life.groups = {}
        self.end(life, "delete", "deleted")

    def members(self, group: Gathered) -> list[Life]:
        return [life for life in self.lives.values() if group.id in life.groups]

    def buried(self, group: Gathered) -> int:
        return sum(life.state == "!" for life in self.members(group))

    # Time.

    def is_contested(self) -> bool:
        """True, too, if a sweep may let a group end for which a task waits."""
        awaited = {life.waits for life in self.lives.values()}
        return super().is_contested() or any(awaited & life.groups.keys() for life in self.due())

    def is_open_to(self, now: int) -> bool:
        """True if the order of partitions would not decide at that time which task has a unique key: a task
        that comes back takes its key if another one has expired before it, in whatever scope.
        """
        due = [life for life in self.lives.values() if is_over(life.timer, now)]
        returning = {life.unique for life in due if life.scope == "queued"}
        return not self.is_parted or not rivals(due) & returning

    def sweep(self) -> None:
        super().sweep()
        for group in [*self.groups.values()]:
            if group.cancelled:
                self._cancel(group)
        for group in [*self.groups.values()]:
            if group.ended is None and group.left <= 0 and (group.cancelled or not group.is_open):
                group.ended = self.now
                self._start(group)

    def _cancel(self, group: Gathered) -> None:
        for life in self.members(group):
            if life.state == "t":
                life.cancelled = life.cancelled or self.now
            else:
                self.end(life, "cancel", "cancelled")
        gone = [groups for groups in self.away if group.id in groups]
        self.away = [groups for groups in self.away if group.id not in groups]
        for groups in gone:
            self.count_off(groups)

    def _start(self, group: Gathered) -> None:
        for life in [life for life in self.lives.values() if life.waits == group.id]:
            if group.cancelled:
                self.end(life, "cancel", "cancelled")
                continue
            life.waits = None
            if life.state == "~":
                span = None if life.expires is None else life.expires - life.created
                life.state, life.expires = "r", added(self.now, span)
                self.calls["delay"] += 1


def rivals(lives: Sequence[Life]) -> set[Any]:
    """The unique keys that more than one of these tasks has."""
    counts = Counter(life.unique for life in lives if life.unique is not None)
    return {unique for unique, count in counts.items() if count > 1}


class MixedPuts(Verbs):
    model: MixedModel
    is_swept = True
    """True if no task has come due since the last sweep."""
    _liked: str | None = None

    def put(self) -> None:
        """A wish that one run likes has half of its puts."""
        if self._liked is None:
            self._liked = self.random.choice(WISHES)
        wish = self._liked if self.random.random() < LIKED else self.random.choice(WISHES)
        # Before a sweep, it is open which task has the key.
        if wish == "unique" and self.is_swept:
            options = self._options()
            self._put(options | self._unique(options))
        elif wish == "group":
            self._put_member()
        elif wish == "after":
            self._put_after()
        else:
            self._put(self._options())

    def _put(self, options: dict[str, Any], **joins: Any) -> Task | None:
        """Put a task. Return it if it is new. Some are so long that few move together (MOVED_BYTES_MAX)."""
        data, known = self._data() * self.random.choice((1, 1, 1, 8)), options | joins
        found = self.caller.answer(lambda tr: self.q.put(tr, data, **known))
        made = found if isinstance(found, Task) else None
        wanted = right(lambda: put(self.model, self.q.name, data, options, made))
        is_new = made is not None and made.id not in self.ids
        if made is not None and is_new:
            assert not made.existed, f"put {known}: it tells of a task that was there"
            self.ids.append(made.id)
            self._follow(made, **joins)
            wanted = self.model.lives[made.id].shown()
        require_equal(f"put {known}", found, wanted)
        return made if is_new else None

    def _follow(self, made: Task, group: str | None = None, after: str | None = None) -> None:
        """Let the groups of the model follow a new task."""
        model, life = self.model, self.model.lives[made.id]
        if group is not None:
            model.join(life, model.groups[group])
        if after in model.lives and made.waits_for is not None:
            model.groups[made.waits_for] = own = Gathered(made.waits_for, True, is_open=False)
            model.join(model.lives[after], own)
            life.state, life.waits = "~", own.id

    def _put_member(self) -> None:
        groups = [*self.model.groups.values()]
        groups = [group for group in groups if group.is_open] or groups
        if not groups:
            self._put(self._options())
            return
        group = self.random.choice(groups)
        if group.is_open:
            self._put(self._options(), group=group.id)
            return
        found = self.caller.answer(lambda tr: self.q.put(tr, "late", group=group.id))
        refused = GroupClosed if group.ended is None else (GroupClosed, GroupNotFound)
        assert isinstance(found, refused), f"a put into the ended group {group.id}: {found!r}"

    def _put_after(self) -> None:
        """Put a task after one of any state; after one that has ended, too."""
        options = self._options()
        options.pop("delay", None)
        parent = self.any_id() if self.ids else None
        life = self.model.lives.get(parent or "")
        if life is None or len(life.groups) < GROUPS_MAX:
            self._put(options, **({} if parent is None else {"after": parent}))

    def any_id(self) -> str:
        return self.random.choice(self.ids[-8:])


class DeadDeeds(Verbs):
    model: MixedModel
    _other: TaskQueue | None = None

    def any_id(self) -> str:
        raise NotImplementedError

    def winners_first(self, lives: list[Life]) -> list[Life]:
        raise NotImplementedError

    def dead_letter(self) -> None:
        """Kick one buried task, or give it other data, by its id."""
        if not self.ids:
            return
        id_, kicks, data = self.any_id(), self.random.random() < 0.6, self._data()
        verbs: dict[bool, Callable[[Any], Any]] = {
            True: lambda tr: self._letters.kick(tr, id_),
            False: lambda tr: self._letters.edit(tr, id_, data),
        }
        what = "kick" if kicks else "edit"
        self._call(f"{what} {id_}", verbs[kicks], partial(self._dead_letter, id_, None if kicks else data))

    @property
    def _letters(self) -> DeadLetters:
        return DeadLetters.open(self.caller.client.db, self.q.name)

    def _dead_letter(self, id_: str, data: Any) -> Task:
        life = self.model.lives.get(id_)
        if life is None:
            raise TaskNotFound(id=id_, name=self.q.name)
        if life.state != "!":
            raise NotBuried(id=id_, state=STATES[life.state])
        if data is None:
            self.model.kick([life])
        else:
            life.data = data
        return life.shown()

    def redrive(self) -> None:
        """Move all buried tasks into another queue, or back into their own one."""
        letters, db = self._letters, self.caller.client.db
        into = self.random.choice((None, self._elsewhere().name))
        buried = self.model.in_state("!")
        letters.begin_redrive(db, rate_per_s=RATE_PER_S, into=into)
        moved, is_open = 0, bool(buried)
        while is_open:
            step = letters.step_redrive(db)
            moved, is_open = moved + step.moved, step.redrive.is_open
        require_equal("redriven", moved, len(buried))
        if into is None:
            self.model.kick(self.winners_first(buried))
        else:
            for life in buried:
                self.model.send_away(life)

    def _elsewhere(self) -> TaskQueue:
        if self._other is None:
            self._other = TaskQueue.create(self.caller.client.db, OTHER, "fifo", if_not_exists=True)
        return self._other

    def use_the_other_queue(self) -> None:
        """Take a task that was moved there, and end it."""
        other, session = self._elsewhere(), self.sessions["a"]
        found = self.caller.answer(lambda tr: other.take_many(tr, 1, session=session))
        require_equal("tasks elsewhere", len(found), min(1, len(self.model.away)))
        if found:
            groups, acks = self.model.away.pop(0), self.random.random() < 0.5
            verb = other.ack if acks else other.delete
            self.caller.answer(lambda tr: verb(tr, found[0]))
            self.model.count_off(groups, acks)

    def verify(self) -> None:
        found = unsound(self.caller.client.db, DEFAULT_ROOT)
        require_equal("verification", found, [])


KINDS: Kinds = tuple(
    (kind, {**options, **parts})
    for kind, options in (
        ("fifo", {}),
        ("fifottl", {}),
        ("limfifottl", {"capacity": 6}),
        ("limfifottl", {"capacity": 4}),
        ("utube", {}),
        ("utubettl", {"key_concurrency": 2}),
        ("fair", {}),
        ("bag", {}),
    )
    for parts in ({}, {"partitions": 2}, {"partitions": 3})
)
VERBS: Mapping[str, float] = {
    "put": 4,
    "put_many": 1,
    "take": 4,
    "use_a_lease": 6,
    "by_id": 4,
    "dead_letter": 1.5,
    "kick": 1,
    "repartition": 1,
    "pause": 0.5,
    "gather": 1,
    "end_group": 0.7,
    "redrive": 0.3,
    "use_the_other_queue": 0.5,
    "release_all": 0.2,
    "truncate": 0.1,
    "end_session": 0.2,
    "let_a_session_die": 0.3,
    "forget_result": 0.2,
    "verify": 0.15,
}
ALWAYS = ("put", "take", "by_id")
SHARES = (0, 0.5, 1, 1, 4)
NAME = "exact_mixed"
PARTITIONS = (1, 2, 3, 5)
UNUSUAL = 0.6


# The model lets all groups end at once, and takes all that a call asks for.
@workload(
    clients=1,
    steps=50,
    never=("die", "stall", "slow_reply", "clock_skew_s"),
    wide=(
        "BATCH_BYTES_MAX",
        "BATCH_RECORDS_BYTES_MAX",
        "SERVE_BYTES_MAX",
        "BATCH_HOLDERS_BYTES_MAX",
        "GROUPS_ENDED_MAX",
    ),
)
def exact_mixed(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    random = Random(f"{simulation.seed} exact mixed")
    unswept(simulation)
    draw_limits(
        simulation,
        random,
        DUE_BATCH=(1, 3, 8),
        VERB_BATCH=(2, 8),
        FAILURES_KEPT=(1, 3),
        MOVED_BYTES_MAX=(60, 4_000_000),
        GROUPS_SWEPT_MAX=(1, 8),
    )
    return one_process(simulation, size, NAME, random, KINDS, Mixed, MixedModel, MixedProcess)


# Calls.


class Mixed(DeadDeeds, MixedPuts, Many):
    model: MixedModel

    def __init__(self, caller: Caller, q: TaskQueue, model: MixedModel, sessions: dict[str, Session]) -> None:
        super().__init__(caller, q, model, sessions)
        weights = {name: self.random.choice((0.2, 1, 1, 4)) for name in LEASES}
        self._lease_verbs, self._lease_weights = [*weights], [*weights.values()]

    # Tasks by lease and by id.

    def use_a_lease(self) -> None:
        """As in `exact`. Cancelled tasks, and those that have failed before, have more of the calls."""
        if not self.leases:
            return
        odd = [task for task in self.leases if self._is_unusual(self.model.lives.get(task.id))]
        task = self.random.choice(odd if odd and self.random.random() < UNUSUAL else self.leases)
        [name] = self.random.choices(self._lease_verbs, self._lease_weights)
        verb, answer = LEASES[name](self, task)
        self._call(f"{name} of {task.id}", verb, of_holder(self.model, task, answer))

    def by_id(self) -> None:
        if self.ids:
            name, id_ = self.random.choice(("bury", "bury", "delete", "cancel", "cancel")), self.any_id()
            self._call(
                f"{name} {id_}", lambda tr: getattr(self.q, name)(tr, id_), partial(self._by_id, name, id_)
            )

    def any_id(self) -> str:
        """An id, which is that of a task in an unusual state in most calls."""
        odd = [life.id for life in self.model.lives.values() if self._is_unusual(life)]
        there = [*self.model.lives]
        if odd and self.random.random() < UNUSUAL:
            return self.random.choice(odd)
        return self.random.choice(there if there and self.random.random() < 0.7 else self.ids[-8:])

    def _is_unusual(self, life: Life | None) -> bool:
        return life is not None and (
            life.state == "!" or life.cancelled is not None or life.failures > 0 or bool(life.groups)
        )

    # Takes.

    def _least(self) -> int:
        """None at least, while a task key may be held (tasks/parted.py)."""
        return 0 if self.is_under_way() and self.q.kind in KEYED else super()._least()

    def _require_next(self, task: Task, ready: list[Life], number: int) -> None:
        if self.is_under_way():
            waiting = [life.id for life in self.model.in_state("r")]
            assert task.id in waiting, f"taken: {task}, of {waiting}"
        else:
            super()._require_next(task, ready, number)

    # The queue.

    def is_under_way(self) -> bool:
        plan = self.q._calls(self.caller.client.db).parts.plan
        return plan is not None and bool(plan.before)

    def repartition(self) -> None:
        count = self.random.choice(PARTITIONS)
        found = caught(partial(self.q.repartition, partitions=count), self.caller.client.db)
        if isinstance(found, RepartitionUnderWay):
            assert self.model.lives, "a repartition of an empty queue has not ended"
            return
        assert not isinstance(found, Exception), f"repartition: {found!r}"
        if found.before != count or self.model.is_parted:
            self.model.options["partitions"] = count

    def winners_first(self, lives: list[Life]) -> list[Life]:
        """Of tasks that have come back together, in several partitions, those first that have their unique
        keys now: the order of partitions has decided it.
        """
        if not self.model.is_parted or not rivals([life for life in lives if life.scope == "queued"]):
            return lives
        peek = partial(self._have_keys, [life.id for life in lives])
        have = run(self.caller.client.db, peek)
        return sorted(lives, key=lambda life: life.id not in have)

    def _have_keys(self, ids: list[str], tr: Any) -> set[str]:
        found = [caught(partial(self.q.peek, task=id_), tr) for id_ in ids]
        return {one.id for one in found if isinstance(one, Task) and one.unique is not None}

    # Groups.

    def gather(self) -> None:
        holds = self.random.random() < 0.5
        made = self.caller.answer(lambda tr: Group.create(tr, wait_for_buried=holds))
        self.model.groups[made.id] = Gathered(made.id, holds)

    def end_group(self) -> None:
        mine = [group for group in self.model.groups.values() if group.ended is None]
        if not mine:
            return
        group, verb = self.random.choice(mine), self.random.choice(("close", "close", "cancel"))
        found = self.caller.answer(getattr(Group(group.id), verb))
        assert not isinstance(found, Exception), f"{verb}: {found!r}"
        group.is_open, group.cancelled = False, group.cancelled or verb == "cancel"


class MixedProcess(Process):
    _user: Mixed
    _model: MixedModel

    def __init__(self, user: Mixed) -> None:
        super().__init__(user)
        rare = {name: share * self._random.choice(SHARES) for name, share in VERBS.items()}
        shares = {**rare, **{name: max(rare[name], 1) for name in ALWAYS}}
        self._verbs, self._weights = [*shares], [*shares.values()]

    def step(self) -> None:
        super().step()
        if self._model.groups:
            self._sweep()
            if self._random.random() < 0.2:
                look_at_groups(self._user)

    def _verb(self) -> str:
        [verb] = self._random.choices(self._verbs, self._weights)
        self._user.is_swept = self._swept
        return verb

    def _may_be_unswept(self, verb: str) -> bool:
        """True, too, for a put: a put into a full queue sweeps, and one after a task reads that task."""
        return verb in ("use_a_lease", "by_id", "dead_letter", "put")

    def _may_move_to(self, to: int) -> bool:
        return self._model.is_open_to(to)

    def _sweep(self) -> None:
        """Sweep the end of a member, that of its group, and that of the next one, until nothing is left."""
        if self._swept:
            return
        for _ in range(4 if self._model.groups else 1):
            before = self._caller.client.commits
            self._caller.tick()
            if self._caller.client.commits == before:
                break
        self._swept = True


# Looks.


def look_at_groups(user: Mixed) -> None:
    """Compare the counts of the groups that have not ended.

    Raises: AssertionError.
    """
    model, db = user.model, user.caller.client.db
    for group in [group for group in model.groups.values() if group.ended is None][-3:]:
        found = run(db, partial(_progress, group.id))
        counts = (found.total, found.done, found.failed, found.left, found.buried, found.open)
        wanted = (
            group.total, group.done, group.failed, group.left, model.buried(group), group.is_open,
        )  # fmt: skip
        require_equal(f"the group {group.id}", counts, wanted)


def _progress(id_: str, tr: Transaction) -> GroupProgress:
    return Group(id_).progress(tr)
