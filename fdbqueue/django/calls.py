"""The call of a task, which is the data of a task of ours: its function, its arguments and its settings."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.utils.module_loading import import_string

from fdbqueue.django.api import Task, normalize_json

PRIORITY_MAX = 100


class Call(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call as stored. Append fields with a default."""

    task: str
    """The path of its function."""
    args: list[Any]
    kwargs: dict[str, Any]
    priority: int = 0
    run_after: float | None = None
    """The earliest time at which it may run, in seconds since the epoch."""

    @classmethod
    def of(cls, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Call":
        """Raises: TypeError, ValueError for arguments that JSON does not have."""
        run_after = None if task.run_after is None else task.run_after.timestamp()
        plain_args, plain_kwargs = normalize_json(list(args)), normalize_json(kwargs)
        return cls(task.module_path, plain_args, plain_kwargs, int(task.priority), run_after)

    @classmethod
    def stored(cls, data: Any) -> "Call":
        """Raises: SuspiciousOperation for the data of a task that Django has not enqueued."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise SuspiciousOperation(f"this is no call of a task: {error}") from None

    def to_data(self) -> Any:
        return msgspec.to_builtins(self)

    def to_task(self, queue_name: str, alias: str) -> Any:
        """The Task that was enqueued.

        Raises: ImportError if this process has no such module or name; SuspiciousOperation if that is no
        Task.
        """
        found = import_string(self.task)
        if not isinstance(found, Task):
            raise SuspiciousOperation(f"{self.task} is no Task, and is not called")
        run_after = moment(self.run_after)
        return found.using(priority=self.priority, queue_name=queue_name, run_after=run_after, backend=alias)


def moment(seconds: float | None) -> datetime | None:
    """A time since the epoch as Django has it: in UTC with USE_TZ, else the local one without a zone."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC if settings.USE_TZ else None)


def pri_of(priority: int) -> int:
    """Our priority for one of Django: here the lowest comes first, and there the highest."""
    return PRIORITY_MAX - priority
