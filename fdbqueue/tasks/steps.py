"""The stored steps of a task: for each step that is done, its name and its result, in a key of its own.

The record of the task has their number and their bytes. A task without steps has none of these keys, and its
end costs nothing more.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.feature import End, Feature, Site
from fdbqueue.tasks.records.keys import Record, TaskKeys


class Step(msgspec.Struct, frozen=True, array_like=True):
    """The result of a step as stored. Append fields with a default; never reorder them."""

    payload: bytes | None
    """None for the result None."""


to_bytes = msgspec.msgpack.Encoder().encode
step_of = msgspec.msgpack.Decoder(Step).decode
"""Decode a step. Raises one of aside.DAMAGED for damaged bytes."""


def has_steps(record: Record) -> bool:
    return record.extra is not None and record.extra.steps > 0


class Counted(NamedTuple):
    """The number of steps of a task that are done, and their bytes: names and stored results."""

    steps: int
    size_bytes: int


def counted_in(record: Record) -> Counted:
    return Counted(0, 0) if record.extra is None else Counted(record.extra.steps, record.extra.steps_bytes)


class Steps(Feature):
    def overwritten(self, site: Site, record: Record) -> None:
        """They were steps of other work."""
        _clear(site.tr, site.keys.steps_of(record.id))

    def carried(self, site: Site, record: Record) -> Callable[[TaskKeys], None]:
        """Reads: the steps, by snapshot: they change only with their record."""
        tr, under = site.tr, site.keys.steps_of(record.id)
        rows = tr.snapshot.get_range(under.start, under.stop) if has_steps(record) else ()

        def move(there: TaskKeys) -> None:
            for row in list(rows):
                tr.set(there.steps_of(record.id).start + row.key[len(under.start) :], row.value)
            _clear(tr, under)

        return move

    def gone(self, site: Site, records: Sequence[Record], end: End) -> None:  # noqa: ARG002
        for record in records:
            if has_steps(record):
                _clear(site.tr, site.keys.steps_of(record.id))


def _clear(tr: Transaction, under: slice) -> None:
    tr.clear_range(under.start, under.stop)
