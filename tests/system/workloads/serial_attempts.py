"""The attempts of the workload `serial`: each with its calls, their answers, and its end."""

from dataclasses import dataclass, field
from math import inf
from typing import Any

from tests.system.workloads.serial_calls import Call, Option

STAMP, PREFIX = bytes(10), b"stamp "
_ROUNDING_S = 1e-9


@dataclass
class Attempt:
    name: bytes
    read_version: int | None = None
    read_s: float = inf
    """The time just before it got that version."""
    is_blind: bool = False
    """True if it has only writes, and no read version."""
    calls: list[tuple[Call, Any]] = field(default_factory=list)
    stamped: bytes | None = None
    """The key to which it writes the versionstamp."""
    record: bytes = b""
    """The value under its versionstamp; empty until it commits."""
    place: tuple[int, int] | None = None
    """The version that its commit has told, and the order there."""
    code: int | None = None
    """The error that has ended it."""

    @property
    def may_watch(self) -> bool:
        sees_own = not any(call == Option("read_your_writes_disable") for call, _ in self.calls)
        return sees_own and not self.is_blind


@dataclass
class Handle:
    """A transaction, its present attempt, and the settings that on_error keeps."""

    tr: Any
    attempt: Attempt
    created_s: float
    timeout_s: float = inf
    retry_limit: float = inf
    retries: int = 0

    def left_s(self, now_s: float) -> float:
        return self.timeout_s - (now_s - self.created_s)

    def is_over(self, now_s: float) -> bool:
        """True if its timeout may end it at that time."""
        return self.left_s(now_s) <= _ROUNDING_S

    def is_long_over(self, now_s: float) -> bool:
        """True if its timeout must have ended it."""
        return self.left_s(now_s) <= -_ROUNDING_S

    def begin_anew(self, now_s: float) -> None:
        """Forget all, as a reset does."""
        self.created_s, self.timeout_s, self.retry_limit, self.retries = now_s, inf, inf, 0
