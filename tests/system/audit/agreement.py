"""Agreement: after each commit all keys agree, by the checks of a verification (fdbqueue/operate/verify).

A commit may break the agreement of the keys that it has changed, of those that they named before, and of no
others.
"""

from collections.abc import Iterator

from fdbqueue.core.rows import Checks, Row, Suspect, Under
from tests.system.audit.commit import Step
from tests.system.audit.mirror import Mirror


class Agreement:
    def __init__(self, checks: Checks, prefix: bytes, apart: slice | None = None) -> None:
        """`apart`: keys below the prefix that have checks of their own."""
        self._checks = checks
        self._prefix = prefix
        self._apart = apart

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        for row in self._concerned(step, mirror):
            for suspect in self._checks.judge(row, mirror):
                if not any(_explained(suspect, mirror)):
                    yield f"{suspect.text} (key {row.key.hex()})"

    def _concerned(self, step: Step, mirror: Mirror) -> Iterator[Row]:
        """The changed rows, and the rows that they named before."""
        seen = set(step.changes)
        for key, values in step.changes.items():
            if values.after is not None:
                yield Row(key, values.after)
            if values.before is not None:
                for row in self._named(Row(key, values.before), mirror):
                    if row.key not in seen and self._has(row.key):
                        seen.add(row.key)
                        yield row

    def _has(self, key: bytes) -> bool:
        is_apart = self._apart is not None and self._apart.start <= key < self._apart.stop
        return key.startswith(self._prefix) and not is_apart

    def _named(self, row: Row, mirror: Mirror) -> Iterator[Row]:
        for wanted in self._checks.asks(row):
            if isinstance(wanted, Under):
                yield from mirror.rows(wanted)
                continue
            value = mirror.value(wanted)
            if value is not None:
                yield Row(wanted, value)


def _explained(suspect: Suspect, mirror: Mirror) -> Iterator[bool]:
    return (excuse.explains(mirror.rows(excuse.under)) for excuse in suspect.excuses)
