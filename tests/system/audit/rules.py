"""The rules of one queue: which of them judge a step depends on its kind."""

from collections.abc import Iterator

from fdbqueue.operate.verify.partitions import ElementChecks, RecipeChecks
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.verify import Subject
from fdbqueue.tasks.stored.keyed import Keyed
from fdbqueue.testing.trace import Trace
from tests.system.audit import bounds, calls, counters, leases
from tests.system.audit.agreement import Agreement
from tests.system.audit.answers import Ready
from tests.system.audit.commit import Step
from tests.system.audit.elements import Elements
from tests.system.audit.ends import Ended, leases_ended
from tests.system.audit.handed import HandedLocks
from tests.system.audit.history import History
from tests.system.audit.items import Items
from tests.system.audit.liveness import Liveness
from tests.system.audit.losses import lost_items, lost_leases
from tests.system.audit.mirror import Mirror
from tests.system.audit.model import Tasks, TaskStep
from tests.system.audit.order import Order
from tests.system.audit.pauses import taken_in_a_pause
from tests.system.audit.unseen import changed_unseen


class QueueRules:
    def __init__(
        self,
        subject: Subject,
        liveness: Liveness,
        *,
        registered: bool,
        history: History | None = None,
        handed: HandedLocks | None = None,
    ) -> None:
        self.prefix = subject.keys.start
        self._name = subject.name
        self._registered = registered
        self._checks = subject.checks
        self._counters = counters.Counters(subject.counts)
        self._agreement = Agreement(subject.checks, self.prefix)
        self._tasks = Tasks(subject.checks, registered) if isinstance(subject.checks, TaskChecks) else None
        self.history = history or History(liveness)
        self._items: Items | None = None
        if isinstance(subject.checks, RecipeChecks):
            self._items = Items(subject.checks.recipe, liveness)
        self._elements: Elements | None = None
        if isinstance(subject.checks, ElementChecks):
            self._elements = Elements(subject.checks.keys, handed or HandedLocks())
        if self._tasks is not None:
            self._order = Order(self._tasks.checks.shape, registered)
            self._requests = self.history.requests(self._tasks.keys.line)
        self._ready: Ready | None = None
        if (
            self._tasks is not None
            and registered
            and not isinstance(self._tasks.checks.shape.discipline, Keyed)
        ):
            self._ready = Ready(self._tasks.keys.paused)
        self.ended = Ended()
        """The leases that the last commit has ended."""

    def untrue_in(self, trace: Trace) -> Iterator[str]:
        """Check the answers of nothing in a whole run."""
        yield from () if self._ready is None else self._ready.untrue_in(trace, self._name)

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        for text in self._judge(step, mirror):
            yield f"{self._name}: {text}"

    def _judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        yield from self._agreement.judge(step, mirror)
        yield from self._counters.judge(step, mirror)
        yield from changed_unseen(self._checks, step)
        if self._items is not None:
            yield from self._items.judge(step, mirror)
        if self._elements is not None:
            yield from self._elements.judge(step)
        if self._tasks is not None:
            yield from self._of_tasks(self._tasks, self._tasks.follow(step), mirror)
        if self._tasks is None or not self._registered:
            yield from lost_items(step)

    def _of_tasks(self, tasks: Tasks, step: TaskStep, mirror: Mirror) -> Iterator[str]:
        shape, keys = tasks.checks.shape, tasks.keys
        yield from counters.ClassCounters(keys).judge(step.changes, mirror)
        if isinstance(shape.discipline, Keyed):
            yield from counters.key_counters(shape.discipline, step, mirror)
        yield from calls.rung(keys, keys.calls if tasks.registered else keys.live, step)
        errors: list[str] = []
        line = self._requests.follow(step.changes, mirror, errors)
        yield from errors
        yield from self._order.judge(step, line, self._requests)
        self.ended = leases_ended(step, shape.root, mirror)
        if self._ready is not None:
            self._ready.follow(step)
        if tasks.registered:
            yield from leases.delivered(shape, step, line, mirror)
            yield from lost_leases(shape, step, line, mirror)
            yield from self.history.lives.judge(step)
            yield from calls.counted(step, line)
            yield from bounds.within_capacity(shape, step)
            yield from bounds.within_concurrency(shape, step)
            yield from taken_in_a_pause(keys, step, mirror)
