"""The legal steps of elements: payloads never change, and a locked element goes by a holder of its lock.

The holder is the machine that has acquired the lock. A machine to which it was handed over is one, too.
"""

from collections.abc import Iterator

from fdbqueue.queues.elements.store import ELEMENT, LOCK, PAYLOAD, ElementKeys, Lock
from fdbqueue.testing.trace import Commit
from tests.system.audit.commit import Step, Values
from tests.system.audit.handed import HandedLocks


class Elements:
    def __init__(self, keys: ElementKeys, handed: HandedLocks) -> None:
        self._keys = keys
        self._handed = handed
        self._holders: dict[bytes, tuple[str, bytes]] = {}
        """The machine that has locked each locked element, and the token of the lock."""

    def judge(self, step: Step) -> Iterator[str]:
        parts: dict[int, dict[bytes, Values]] = {ELEMENT: {}, LOCK: {}, PAYLOAD: {}}
        for key, values in step.changes.items():
            column, rest = self._keys.parts_of(key)
            if column in parts:
                parts[column][rest] = values
        for rest, values in parts[PAYLOAD].items():
            if values.before is not None and values.after is not None:
                yield f"the payload of an element has changed: {rest!r}"
        for name, values in parts[ELEMENT].items():
            yield from self.removed_by_its_holder(step.commit, name, values)
        for name, values in parts[LOCK].items():
            yield from self.renewed_by_its_holder(step.commit, name, values)

    def removed_by_its_holder(self, commit: Commit, name: bytes, values: Values) -> Iterator[str]:
        holder = self._other_holder(commit, name)
        if values.after is None and holder is not None:
            yield f"the element {name!r} is locked by {holder}, and removed by {commit.machine}"

    def renewed_by_its_holder(self, commit: Commit, name: bytes, values: Values) -> Iterator[str]:
        holder = self._other_holder(commit, name)
        if values.after is None:
            self._holders.pop(name, None)
            return
        after = Lock.from_bytes(values.after)
        self._holders[name] = commit.machine, after.token
        if values.before is None:
            return
        before = Lock.from_bytes(values.before)
        if before.token != after.token:
            yield f"the locked element {name!r} is locked again: {before} and {after}"
        elif holder is not None or after.since_us < before.since_us:
            yield f"the lock of the element {name!r} of {holder} is renewed by {commit.machine}: {after}"

    def _other_holder(self, commit: Commit, name: bytes) -> str | None:
        """The machine that holds the lock of the element; None if the committing machine may act under it."""
        holder, token = self._holders.get(name, (commit.machine, b""))
        may = holder == commit.machine or self._handed.has(token, commit.machine)
        return None if may else holder
