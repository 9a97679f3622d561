"""Queues that come and go, with members of groups: the last member, the close, the drop of either queue."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.groups.group import Group
from fdbqueue.tasks.groups.settling import sweep_groups
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_queues import ROOT, Opened, Queues
from tests.system.workloads.paired_store import Twins
from tests.system.workloads.paired_world import Call, text_of

KINDS = ("fifo", "fifottl", "utube")
GROUPS_SEEN, RETAIN_S = 3, 60


@dataclass(frozen=True)
class Gathered:
    """The answer of a call that makes a group. Its id is random."""

    group: Group = field(repr=False)


class Groups(Queues):
    verbs = (
        "put",
        "take",
        "end",
        "id",
        "kick",
        "truncate",
        "close",
        "cancel",
        "gather",
        "drop",
        "create",
        "tick",
    )
    ends = ("ack", "ack", "bury", "bury", "release", "delete")

    def __init__(self, random: Random, twins: Twins) -> None:
        super().__init__(random, twins)
        self._groups: list[Group] = []
        # One kind: each order makes queues anew, and a process remembers them by their ids.
        self._kind = random.choice(KINDS)
        for name in self.queues:
            TaskQueue.create(twins.own, name, self._kind)
        self._own = self.opened(twins.own)
        self._gather_now()

    def __str__(self) -> str:
        return f"queues of the kind {self._kind} that come and go, and groups"

    def opened(self, db: Database) -> Opened:  # noqa: ARG002  # each call opens its queue
        return TaskQueue.open

    def learn(self, answer: Any) -> None:
        super().learn(answer)
        made = answer if isinstance(answer, list | tuple) else (answer,)
        new = [one.group for one in made if isinstance(one, Gathered)]
        self._groups = [*self._groups, *new][-GROUPS_SEEN:]

    def names(self) -> Mapping[str, str]:
        return {**super().names(), **{group.id: f"group {n}" for n, group in enumerate(self._groups)}}

    # The state.

    def top_up(self) -> None:
        """Leave a group with one or two members that have not ended, and one of them taken."""
        own, choice = self.twins.own, self.random.choice
        for name in self.queues:
            if choice((True, True, False)):
                TaskQueue.create(own, name, self._kind, if_not_exists=True)
        if not self._groups or choice((True, False)):
            self._gather_now()
        count = choice((0, 1, 1, 2))
        group = self._groups[-1]
        caught(lambda db: self._own(db, self.queues[0]).put_many(db, self.data(count), group=group), own)
        self.learn(caught(lambda db: self._taken(self.queues[0], 1, self._own, db), own))
        if choice((True, False, False)):
            caught(group.close, own)

    def _gather_now(self) -> None:
        then = caught(lambda db: (self._own(db, self.queues[-1]), *self.data(1)), self.twins.own)
        waits = self.random.choice((True, False))
        options: dict[str, Any] = {"wait_for_buried": waits, "retain_s": RETAIN_S}
        options |= {"then": then} if isinstance(then, tuple) else {}
        self.learn(Gathered(Group.create(self.twins.own, **options)))

    def _group(self) -> Group:
        return self._groups[-1] if self.random.random() < 0.8 else self.random.choice(self._groups)

    # Calls.

    def _put(self) -> Call:
        data, name = self.data(self.random.choice((1, 1, 2))), self.queue_name()
        group = self._group() if self.random.random() < 0.8 else None
        text = f"put {data} into {name}{' as members' if group else ''}"

        def verb(at: Opened, tr: Any) -> Any:
            return at(tr, name).put_many(tr, data, group=group)

        return self._call("put", text, verb, adds=data)

    def _close(self) -> Call:
        group = self._group()
        return self._call("close", f"close {group.id}", lambda _, tr: group.close(tr))

    def _cancel(self) -> Call:
        group = self._group()
        return self._call("cancel", f"cancel {group.id}", lambda _, tr: group.cancel(tr))

    def _gather(self) -> Call:
        """A group whose `then` lies in a queue that may be dropped."""
        (data,), waits = self.data(1), self.random.choice((True, False))

        def verb(at: Opened, tr: Any) -> Gathered:
            then = (at(tr, self.queues[-1]), data)
            return Gathered(Group.create(tr, then=then, wait_for_buried=waits, retain_s=RETAIN_S))

        return Call("gather", f"make a group, then {data}", verb, adds=[data], within=True)

    def _drop(self) -> Call:
        name = self.queue_name()
        return self._call("drop", f"drop {name}", lambda at, tr: at(tr, name).drop(tr))

    def _create(self) -> Call:
        name, is_open = self.queue_name(), self.random.choice((True, False))

        def verb(_: Opened, tr: Any) -> str:
            return TaskQueue.create(tr, name, self._kind, if_not_exists=is_open).kind

        return self._call("create", f"create {name}", verb)

    def _tick(self) -> Call:
        call = super()._tick()

        def verb(at: Opened, db: Any) -> None:
            sweep_groups(db, ROOT)
            call.verb(at, db)

        return Call(call.name, call.text, verb, alone=True)

    # Looks.

    def seen(self, tr: Transaction) -> dict[str, Sequence[str]]:
        found = super().seen(tr)
        found["groups"] = [text_of(group.progress, tr) for group in self._groups]
        for name in self.queues:
            found[f"the queue {name}"] = ["there" if self.handle(tr, name) else "dropped"]
        return found
