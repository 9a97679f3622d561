"""The verification at the end of a run: every key under the root, and queues over subspaces."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.operate.verify.values import Verification
from fdbqueue.operate.verify.verify import AnyQueue, verify
from fdbqueue.testing.trace import Trace


@dataclass(frozen=True)
class Sound:
    queues: Sequence[AnyQueue]

    def __call__(self, _: Trace, database: Database) -> Iterator[str]:
        for queue in self.queues:
            yield from told(verify(database, queue))


def sound(*queues: AnyQueue) -> Callable[[Trace, Database], Iterator[str]]:
    """Check that a verification of queues over subspaces finds nothing. The root is always verified. A watch
    knows such queues by this checker (watch.py).
    """
    return Sound(queues)


def unsound(database: Database, root: Any = DEFAULT_ROOT) -> list[str]:
    """Verify everything under the root, and tell the findings."""
    return list(told(verify(database, root=root)))


def told(*verifications: Verification) -> Iterator[str]:
    """Tell the findings, a sentence each."""
    for verification in verifications:
        for finding in verification.findings:
            where = "the root" if finding.queue is None else finding.queue
            yield f"verify, {finding.flaw} in {where}: {finding.text} (key {finding.key.hex()})"
