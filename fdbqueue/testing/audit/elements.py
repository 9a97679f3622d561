"""The legal steps of elements: payloads never change, and a locked element goes by the holder of its lock."""

from collections.abc import Iterator

from fdbqueue.elements.keys import ELEMENT, LOCK, PAYLOAD, ElementKeys, Lock
from fdbqueue.testing.audit.commit import Commit, Step, Values


class Elements:
    def __init__(self, keys: ElementKeys) -> None:
        self._keys = keys
        self._holders: dict[bytes, str] = {}
        """The machine that has locked each locked element."""

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
        holder = self._holders.get(name, commit.machine)
        if values.after is None and holder != commit.machine:
            yield f"the element {name!r} is locked by {holder}, and removed by {commit.machine}"

    def renewed_by_its_holder(self, commit: Commit, name: bytes, values: Values) -> Iterator[str]:
        holder = self._holders.get(name, commit.machine)
        if values.after is None:
            self._holders.pop(name, None)
            return
        self._holders[name] = commit.machine
        if values.before is None:
            return
        before, after = Lock.from_bytes(values.before), Lock.from_bytes(values.after)
        if before.token != after.token:
            yield f"the locked element {name!r} is locked again: {before} and {after}"
        elif holder != commit.machine or after.since_us < before.since_us:
            yield f"the lock of the element {name!r} of {holder} is renewed by {commit.machine}: {after}"
