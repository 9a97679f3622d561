"""CPython's own tests of queue.Queue, run with ours in its place, where its test package is installed."""

import queue
from collections.abc import Callable
from itertools import count

import pytest

import fdbqueue

theirs = pytest.importorskip("test.test_queue", reason="CPython's test package is not installed")

# Their `shutdown`, new in 3.13, is not ours.
TESTS = (
    "test_basic",
    "test_nowait",
    "test_queue_task_done",
    "test_queue_join",
    "test_negative_timeout_raises_exception",
    "test_shrinking_queue",
)


@pytest.mark.parametrize("name", TESTS)
def test_what_cpython_asks_of_its_queue(db: fdbqueue.Database, space: object, name: str) -> None:
    Case(name, db, space).debug()


class Case(theirs.BaseQueueTestMixin, theirs.unittest.TestCase):  # type: ignore[misc, name-defined]
    queue = queue

    def __init__(self, name: str, db: fdbqueue.Database, space: object) -> None:
        super().__init__(name)
        self.type2test: Callable[..., fdbqueue.PersistentQueue] = fresh_queues(db, space)


# pytest must not collect this class: it needs a database.
Case.__test__ = False


def fresh_queues(db: fdbqueue.Database, space: object) -> Callable[..., fdbqueue.PersistentQueue]:
    numbers = count()

    class Queue(fdbqueue.PersistentQueue):
        """They choose their expectations by the name of the class."""

        def __init__(self, maxsize: int = 0) -> None:
            super().__init__(db, f"like-{next(numbers)}", maxsize, root=space)

    return Queue
