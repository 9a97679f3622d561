"""The age of receipts: a process clears those of its own calls, and any other one that is a day old."""

from collections.abc import Iterator

from fdbqueue.core import limits
from fdbqueue.core.once import ATTEMPT
from fdbqueue.testing.trace import Commit
from tests.system.audit.commit import Step


class Receipts:
    def __init__(self) -> None:
        self._writers: dict[bytes, str] = {}
        """The machine that has written each receipt."""

    def judge(self, step: Step) -> Iterator[str]:
        for key, values in step.changes.items():
            if values.after is not None:
                self._writers[key] = step.commit.machine
            elif values.before is not None:
                yield from self.cleared_in_time(step.commit, key, values.before)

    def cleared_in_time(self, commit: Commit, key: bytes, receipt: bytes) -> Iterator[str]:
        writer, (written_us, _) = self._writers.pop(key), ATTEMPT.unpack(receipt)
        age_s = (commit.now_us - written_us) / 1_000_000
        if writer != commit.machine and age_s < limits.RECEIPT_STALE_S:
            yield f"a receipt of {writer} is cleared by {commit.machine}, {age_s:.0f} s old (key {key.hex()})"
