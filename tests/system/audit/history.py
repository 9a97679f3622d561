"""What is known of a task queue beside its present keys. It outlives a change of the plan of the queue."""

from dataclasses import dataclass, field

from fdbqueue.core.line.decision import LineKeys
from tests.system.audit.line import Requests
from tests.system.audit.liveness import Liveness
from tests.system.audit.lives import Lives


@dataclass
class History:
    liveness: Liveness
    lives: Lives = field(default_factory=Lives)
    """The lives of its tasks."""
    high: int = 1
    """The largest number of partitions that it has had."""
    came_in: dict[bytes, int] = field(default_factory=dict)
    """Of a queue with partitions, the version in which each stored task came."""
    _lines: dict[bytes, Requests] = field(default_factory=dict)

    def requests(self, line: bytes) -> Requests:
        """The requests of the line with that prefix."""
        found = self._lines.get(line)
        if found is None:
            found = self._lines[line] = Requests(LineKeys(line), self.liveness)
        return found
