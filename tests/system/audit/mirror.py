"""The rows of a database as of its last commit, kept beside the engine: each commit tells its writes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sortedcontainers import SortedDict

from fdbqueue.core import limits
from fdbqueue.core.rows import Row, Seen, Under
from fdbqueue.embedded import layout
from fdbqueue.embedded.writes import CommitRequest, place, stamp
from tests.system.audit.commit import Values


class Mirror(Seen):
    """What the checks of a verification see: every key, at the version of the last commit."""

    def __init__(self) -> None:
        super().__init__({}, {})
        self._stored: SortedDict = SortedDict()
        self.unseen: list[bytes] = []
        """The keys that the last commit has changed, with values written since its read version."""
        self.kept: list[bytes] = []
        """The keys that the last commit has written, with the values that they had."""
        self._since: dict[bytes, int] = {}
        """The version of the last change of each key."""

    def value(self, key: bytes) -> bytes | None:
        found: bytes | None = self._stored.get(key)
        return found

    def rows(self, keys: Under) -> Sequence[Row]:
        return list(islice(self.under(keys.start, keys.stop), keys.limit or limits.VERIFIED_ROWS_MAX))

    def under(self, start: bytes, stop: bytes) -> Iterator[Row]:
        for key in self.keys_in(start, stop):
            yield Row(key, self._stored[key])

    @classmethod
    def holding(cls, rows: Mapping[bytes, bytes]) -> "Mirror":
        """Of a database that has these rows."""
        made = cls()
        made._stored.update(rows)
        return made

    def copied(self) -> dict[bytes, bytes]:
        """The rows as they are now."""
        return dict(self._stored)

    def keys_in(self, start: bytes, stop: bytes) -> Iterator[bytes]:
        keys: Iterator[bytes] = self._stored.irange(start, stop, (True, False))
        return keys

    def _changed_since(self, keys: Iterable[bytes], version: int) -> list[bytes]:
        """The keys with values that were written after a version."""
        return [key for key in keys if self._since.get(key, 0) > version]

    def follow(self, txn: Any, request: CommitRequest) -> dict[bytes, Values]:
        """Take over the writes of the last commit, which `txn` sees. Return the keys that have changed."""
        changed: dict[bytes, Values] = {}
        self.kept = []
        for key in self._written(request):
            before, after = self._stored.get(key), layout.get(txn, key)
            if before != after:
                changed[key] = Values(before, after)
            elif after is not None:
                self.kept.append(key)
        self.unseen = self._changed_since(changed, request.read_version or 0)
        assert request.version is not None
        for key, values in changed.items():
            self._since[key] = request.version
            if values.after is None:
                del self._stored[key]
            else:
                self._stored[key] = values.after
        return changed

    def _written(self, request: CommitRequest) -> set[bytes]:
        buffer = request.buffer
        keys = set(buffer.entries)
        for begin, end in buffer.cleared:
            keys.update(self.keys_in(begin, end))
        if buffer.stamped_keys:
            assert request.version is not None
            of_this = stamp(request.version, request.order)
            keys.update(place(body, offset, of_this) for body, offset, _ in buffer.stamped_keys)
        return keys
