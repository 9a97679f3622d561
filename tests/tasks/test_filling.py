"""`take_many(..., fill=)`: a take that waits for more tasks after the first, on both faces."""

import asyncio
import math
import threading
from collections.abc import Iterator

import pytest

from fdbqueue import TaskQueue, aio, transactional
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.tasks.filling import filled
from tests.support import PATIENCE_S, wait_until


@pytest.fixture
def queue(db, space) -> TaskQueue:
    return TaskQueue.create(db, "filled", "fifottl", ttr=60, root=space)


def later(work) -> Iterator[None]:
    """Run `work` in another thread."""
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("there", "comes", "expected", "pauses"),
    [
        ([1, 2, 3], [], [1, 2, 3], []),  # full at once
        ([1], [[2, 3]], [1, 2, 3], []),  # there was more
        ([1], [[], [2], [], [3]], [1, 2, 3], [1, 1, 1]),
        ([1], [[]] * 9, [1], [1] * 5),  # the time is over
        ([1], [[2], None], [1, 2], [1]),
    ],
)
def test_few_takes_follow_the_first(there, comes, expected, pauses):
    """At most one at once, and limits.FILL_LOOKS behind pauses."""
    clock, paused, rest = [0.0], [], iter(comes)

    def pause(seconds):
        paused.append(seconds)
        clock[0] += seconds
        return True

    assert filled(there, 3, 5.0, lambda: clock[0], lambda _: next(rest), pause) == expected
    assert paused == pauses


def test_the_last_pause_ends_with_the_time():
    """Also if takes last: then a whole pause would exceed it."""
    clock, paused = [0.0], []

    def more(_):
        clock[0] += 0.75
        return []

    def pause(seconds):
        paused.append(seconds)
        clock[0] += seconds
        return True

    assert filled([1], 3, 5.0, lambda: clock[0], more, pause) == [1]
    assert paused == [1, 1, 0.75]


def test_a_take_waits_for_more_after_the_first_task(db, queue):
    queue.put(db, 1)
    found = []
    for _ in later(lambda: found.extend(queue.take_many(db, 3, fill=PATIENCE_S))):
        wait_until(lambda: queue.statistics(db)["tasks"]["taken"] == 1)
        queue.put_many(db, [2, 3, 4])
    assert [task.data for task in found] == [1, 2, 3]


def test_without_a_task_there_is_nothing_to_fill(db, queue):
    assert queue.take_many(db, 3, 0, fill=PATIENCE_S) == []


def test_the_end_of_the_time_answers_with_what_has_come(db, queue):
    queue.put(db, 1)
    assert [task.data for task in queue.take_many(db, 3, fill=0.01)] == [1]


def test_a_stop_ends_the_fill_and_loses_nothing(db, queue, monkeypatch, caplog):
    queue.put(db, 1)
    stop = db.runtime.event()

    def stopped(*given):
        stop.set()
        return filled(*given)

    monkeypatch.setattr("fdbqueue.tasks.filling.filled", stopped)
    found = queue.take_many(db, 3, stop=stop, fill=PATIENCE_S)
    assert [queue.ack(db, task).data for task in found] == [1]
    assert not caplog.records


def test_an_error_ends_the_fill_and_is_told(db, queue, monkeypatch, caplog):
    """The program learns of the tasks so far by the answer alone."""
    queue.put(db, 1)

    def fails(found, count, fill_s, monotonic, _more, pause):
        return filled(found, count, fill_s, monotonic, (), pause)

    monkeypatch.setattr("fdbqueue.tasks.filling.filled", fails)
    assert [task.data for task in queue.take_many(db, 3, fill=PATIENCE_S)] == [1]
    assert "take_many returns the tasks so far" in caplog.text
    assert "TypeError" in caplog.text


@pytest.mark.parametrize("fill", [-1, math.nan, math.inf, "1", None, True])
def test_nonsense_is_refused_before_a_take(db, queue, fill):
    queue.put(db, 1)
    with pytest.raises(InvalidArgument, match="fill"):
        queue.take_many(db, 3, fill=fill)
    assert queue.statistics(db)["tasks"]["ready"] == 1


def test_a_transaction_cannot_wait_for_more(db, queue):
    queue.put(db, 1)
    with pytest.raises(InvalidArgument, match="fill"):
        transactional(lambda tr: queue.take_many(tr, 3, fill=0.1))(db)
    assert len(transactional(lambda tr: queue.take_many(tr, 3, fill=0))(db)) == 1


def test_the_awaited_face_fills_too(url, space):
    async def take() -> list[int]:
        async with aio.open(url) as adb:
            q = await aio.TaskQueue.create(adb, "awaited", "fifottl", ttr=60, root=space)
            taking = asyncio.create_task(q.take_many(adb, 3, fill=PATIENCE_S))
            await q.put(adb, 1)
            await q.put_many(adb, [2, 3])
            return [task.data for task in await taking]

    assert asyncio.run(take()) == [1, 2, 3]


def test_a_cancelled_fill_gives_its_tasks_back(url, space):
    async def take() -> None:
        async with aio.open(url) as adb:
            q = await aio.TaskQueue.create(adb, "awaited", "fifottl", ttr=60, root=space)
            await q.put(adb, 1)
            taking = asyncio.create_task(q.take_many(adb, 3, fill=PATIENCE_S))
            while not (await q.statistics(adb))["tasks"]["taken"]:
                await asyncio.sleep(0.01)
            taking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await taking
            [task] = await q.tasks(adb, "r", 2)
            assert (task.data, task.failures) == (1, 0)

    asyncio.run(take())
