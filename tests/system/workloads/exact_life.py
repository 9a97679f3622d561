"""A task of the workload `exact`, as plain Python: whole microseconds, and one value for each promise."""

from dataclasses import dataclass, field
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.task import EndedTask, Failure, Task, TaskState
from tests.system.workloads.exact_times import added, seconds

WAITS = "r~"


@dataclass
class Life:
    """A task that has not ended. Times and spans are microseconds, None for never."""

    id: str
    data: Any
    created: int
    expires: int | None
    ttr: int | None
    pri: int = 0
    key: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    result_ttl: int | None = None
    unique: Any = None
    scope: str | float = "unfinished"
    state: str = "r"
    until: int | None = None
    attempts: int = 0
    failures: int = 0
    """All since its put; `forgiven` of them do not count any more."""
    forgiven: int = 0
    orphaned: int = 0
    token: bytes | None = None
    taken: int | None = None
    session: str | None = None
    cancelled: int | None = None
    fraction: float | None = None
    told: int | None = None
    steps: dict[str, Any] = field(default_factory=dict)
    failed: list[tuple[int, Failure]] = field(default_factory=list)
    """The stored failures with their numbers."""
    waits: str | None = None
    """The group for whose end it waits."""
    groups: dict[str, bool] = field(default_factory=dict)
    """Its groups. True for one that counts it as failed, since a burial."""

    @property
    def place(self) -> tuple[int, str]:
        return (self.pri, self.id)

    @property
    def timer(self) -> int | None:
        return self.until if self.state in "t~" else self.expires

    def shown(self, state: str = "") -> Task:
        return Task(
            id=self.id,
            state=TaskState(state or self.state),
            data=self.data,
            pri=self.pri,
            key=self.key,
            attempts=self.attempts,
            failures=self.failures - self.forgiven,
            orphaned=self.orphaned,
            created=self.created / 1_000_000,
            expires=seconds(self.expires),
            until=seconds(self.until),
            token=self.token,
            taken=seconds(self.taken),
            session=self.session,
            cancel_asked=seconds(self.cancelled),
            fraction=self.fraction,
            fraction_told=seconds(self.told),
            headers=self.headers,
            result_ttl=seconds(self.result_ttl),
            steps=len(self.steps),
            unique=self.unique,
            groups=tuple(self.groups),
            waits_for=self.waits,
        )

    def ended(self, outcome: str, now: int) -> EndedTask:
        return EndedTask(
            id=self.id,
            outcome=outcome,
            created=self.created / 1_000_000,
            taken=seconds(self.taken),
            ended=now / 1_000_000,
            attempts=self.attempts,
            failures=self.failures,
            key=self.key,
            pri=self.pri,
            session=self.session,
        )

    def free(self, state: str = "r") -> None:
        """Let it have no lease any more."""
        self.state, self.until, self.token, self.taken, self.session = state, None, None, None, None
        self.cancelled, self.fraction, self.told = None, None, None

    def put_off(self, now: int, delay: int) -> None:
        if delay:
            self.state, self.until, self.expires = "~", added(now, delay), added(self.expires, delay)

    def fail(self, failure: Failure, outcome: str, now: int) -> None:
        """Note a failed attempt."""
        self.failures += 1
        noted = Failure(
            failure.error,
            failure.message,
            outcome=outcome,
            attempt=self.attempts,
            when=now / 1_000_000,
            began=seconds(self.taken),
        )
        self.failed = [*self.failed, (self.failures, noted)][-limits.FAILURES_KEPT :]
