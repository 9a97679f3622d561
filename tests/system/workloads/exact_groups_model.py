"""A plain model of groups, and of limits of one queue, for the workload `exact_groups`."""

from dataclasses import dataclass, field

from tests.system.workloads.exact_calls import added, is_over

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
