"""Micro: tasks of one key in order, `key_concurrency` at a time; keys in the order of their first tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from fdbqueue.tasks.disciplines.key_counts import KeyState
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import NUMBER, Record, TaskKeys


class Micro(Keyed):
    """A key with `key_concurrency` tasks taken has no pointer: takers do not see it."""

    counts_taken = True

    def __init__(self, keys: TaskKeys, options: Mapping[str, Any]) -> None:
        super().__init__(keys, options)
        self._concurrency: int = options["key_concurrency"]
        self.one_each = self._concurrency == 1

    def place(self, record: Record) -> bytes:
        return NUMBER.pack(record.pri) + self._keys.order_of(record.id)

    def open(self, state: KeyState) -> bool:
        return state.taken < self._concurrency

    def point(self, state: KeyState, head: Record) -> bytes:  # noqa: ARG002  # heads alone decide
        return self.place(head)

    def after(self, state: KeyState, took: Sequence[Record], freed: int, now: int) -> KeyState:  # noqa: ARG002
        return replace(state, taken=state.taken + len(took) - freed)
