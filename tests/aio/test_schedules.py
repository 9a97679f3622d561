"""Schedules of fdbqueue.aio have the effects of the blocking ones."""

from fdb.subspace_impl import Subspace

from fdbqueue import aio
from tests.aio.support import on_loop


@on_loop
async def test_a_schedule_is_fired_beside_a_loop(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        queue = await aio.TaskQueue.create(db, "reports", root=root)
        schedule = await aio.Schedule.create(db, "tick", every=1, queue="reports", data=5, root=root)
        task = await queue.take(db, 60)
        await schedule.pause(db)

        assert task is not None
        assert (task.data, task.headers["schedule"]) == (5, "tick")
        assert (await schedule.status(db)).paused


@on_loop
async def test_each_verb_of_a_schedule_is_awaited(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        await aio.TaskQueue.create(db, "reports", root=root)
        await aio.Schedule.create(db, "tick", every=60, queue="reports", root=root)
        schedule = await aio.Schedule.open(db, "tick", root=root)
        await schedule.change(db, every=3_600, data=6)
        await schedule.pause(db)
        await schedule.resume(db)

        assert (await schedule.run(db)).data == 6
        assert len(await schedule.next_times(db, 3)) == 3
        assert [found.name for found in await aio.list_schedules(db, root=root)] == ["tick"]
        assert await aio.fire_due(db, root=root) == 0
        await schedule.delete(db)
        assert await aio.list_schedules(db, root=root) == []
