"""The calls of the workload `exact_groups`, each with the same change of the model."""

from math import inf

from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.tasks.groups.group import Group
from fdbqueue.tasks.parking.limit import Limit
from fdbqueue.tasks.queue import TaskQueue
from tests.system.workloads.exact_calls import Caller, Verb, require_equal
from tests.system.workloads.exact_groups_model import SECOND, Books, Gathered, Member, Then, Tokens
from tests.system.workloads.exact_times import added, micro

NAME, APART, THEN, SLOTS, STARTS = (
    "exact_groups",
    "exact_groups_apart",
    "exact_groups_then",
    "slots",
    "starts",
)
TTR_S, AGAIN_S = 4, 1.5


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
