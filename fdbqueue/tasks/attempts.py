"""Attempts and backoff: the number of failed attempts that buries a task, and its pause after each other one.

Their *source* is the put, or else the queue, or else the worker. Each is read after the failure: a change of
the queue holds for tasks that are there, too. A worker goes by all three. A release with a failure goes by
put and queue, because no worker is known.

Those of a put are a part of `Extra.more`: `[attempts, [first_s, growth, cap_s]]`, nil for each that was not
given, and NO_BOUND for inf attempts. A part that cannot be read counts as none.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.task import Task
from fdbqueue.core.unreadable import DAMAGED
from fdbqueue.tasks.options import Backoff, Settings, checked_backoff, given_attempts, stored_attempts
from fdbqueue.tasks.stored.records import Extra, Record

T = TypeVar("T")

PART = 0
"""The place in `Extra.more`."""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """As stored. Append fields with a default; never reorder."""

    attempts: int | None = None
    backoff: tuple[float, float, float] | None = None


class Asked(NamedTuple):
    """The options of one source; None for each that was not given."""

    attempts: float | None = None
    """inf for no bound."""
    backoff: Backoff | None = None


NOTHING = Asked()
USUAL = Asked(5, Backoff())
"""The default of workers."""
TASK, QUEUE, WORKER, DEFAULT = "task", "queue", "worker", "default"


@dataclass(frozen=True, slots=True)
class InForce:
    """The attempts and the backoff that hold for a task, each with its source: "task", "queue", "worker" or
    "default". None from "worker", if no worker is known.
    """

    attempts: float | None
    attempts_from: str
    backoff: Backoff | None
    backoff_from: str

    def is_used_up(self, failures: int) -> bool:
        return self.attempts is not None and failures >= self.attempts

    def delay_s(self, failures: int, random: float) -> float:
        """The pause after that failure; none without a backoff."""
        return 0.0 if self.backoff is None else self.backoff.delay_s(failures, random)


def in_force(task: Asked, queue: Asked, worker: Asked | None = None) -> InForce:
    """`worker`: None if it is not known."""
    given = [(TASK, task), (QUEUE, queue)]
    given += [(WORKER, NOTHING)] if worker is None else [(WORKER, worker), (DEFAULT, USUAL)]
    return InForce(
        *_first((one.attempts, source) for source, one in given),
        *_first((one.backoff, source) for source, one in given),
    )


def _first(values: Iterable[tuple[T | None, str]]) -> tuple[T | None, str]:
    return next((one for one in values if one[0] is not None), (None, WORKER))


def asked(options: Mapping[str, Any], kind: Any, settings: Any) -> dict[str, Any]:  # noqa: ARG001
    """As all of feature.ASKED."""
    attempts, backoff = options.get("attempts"), options.get("backoff")
    stored = None if attempts is None else stored_attempts("attempts", attempts)
    if backoff is not None:
        checked_backoff("backoff", backoff)
    delays = None if backoff is None else (backoff.first_s, backoff.growth, backoff.cap_s)
    return {"more": ((stored, delays),)}


def of_extra(extra: Extra | None) -> Asked:
    if extra is None or len(extra.more) <= PART or extra.more[PART] is None:
        return NOTHING
    try:
        part = msgspec.convert(extra.more[PART], Part)
        return Asked(given_attempts(part.attempts), None if part.backoff is None else Backoff(*part.backoff))
    except (*DAMAGED, InvalidArgument):
        return NOTHING


def of_settings(settings: Settings) -> Asked:
    return Asked(given_attempts(settings.attempts), settings.backoff)


def of_record(record: Record, settings: Settings, worker: Asked | None = None) -> InForce:
    return in_force(of_extra(record.extra), of_settings(settings), worker)


def number_for(
    task: Task, options: Mapping[str, Any], worker: Asked | None = None
) -> tuple[float | None, str]:
    """The attempts in force for a task of a queue with these options, and their source."""
    found = in_force(Asked(task.attempts_max), Asked(options.get("attempts")), worker)
    return found.attempts, found.attempts_from
