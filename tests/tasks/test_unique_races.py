"""Unique keys beside other changes of their tasks: the later one conflicts, or leaves the other as it is."""

import pytest

from tests.support import NOT_COMMITTED, begin, commit_code
from tests.tasks.partitions import MakeBench, PartitionsBench

KEY = "invoice-17"


@pytest.fixture(params=[1, 3], ids=["whole", "parted"])
def b(request: pytest.FixtureRequest, parted: MakeBench) -> PartitionsBench:
    return parted("fifottl", partitions=request.param, ttr=60)


@pytest.mark.parametrize("on_conflict", ["replace", "debounce"])
def test_a_put_with_other_data_conflicts_with_a_take(b: PartitionsBench, on_conflict: str) -> None:
    """Otherwise the taken task would be ready, too."""
    b.put("a", unique=KEY)
    tr = begin(b.db)
    most = 60 if on_conflict == "debounce" else None
    b.queue.put(tr, "b", unique=KEY, on_conflict=on_conflict, debounce_max=most)
    assert b.take().data == "a"
    assert commit_code(tr) == NOT_COMMITTED


def test_a_task_that_comes_back_has_no_key_within_a_window(b: PartitionsBench) -> None:
    """The window outlives its task, and the put in it would make a second one."""
    first = b.queue.put(b.db, "first", unique=KEY, scope="queued")
    task = b.take()
    second = b.queue.put(b.db, "second", unique=KEY, scope=30)
    b.queue.delete(b.db, second)
    b.queue.release(b.db, task)
    assert b.queue.peek(b.db, first).unique is None
    assert b.queue.put(b.db, "third", unique=KEY).id == second.id
