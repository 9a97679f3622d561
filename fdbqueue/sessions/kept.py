"""The sessions that a keeper renews, and the queues that it sweeps, as it sees them."""

from collections.abc import Callable
from typing import Protocol

from fdbqueue.seam import Transaction


class Kept(Protocol):
    """A session that the keeper renews, and ends as soon as it is not `wanted`."""

    id: bytes
    name: str | None
    lost: bool
    wanted: Callable[[], bool] | None

    def beat_if_due(self) -> None: ...
    def end_within(self, timeout_s: float | None) -> None: ...


class Tidied(Protocol):
    """A queue that the keeper sweeps, one batch at a time, when something is due."""

    @property
    def name(self) -> str: ...
    def guard(self, tr: Transaction) -> Callable[[], None]: ...
    def ask_next_due(self, tr: Transaction) -> Callable[[], int | None]: ...
    def tidy(self, tr: Transaction) -> bool: ...
