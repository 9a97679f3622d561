"""A limit of slots and a rate beside an event loop."""

import pytest

from fdbqueue import aio
from fdbqueue.core.errors import InvalidArgument
from tests.aio.support import on_database


@on_database
async def test_a_limit_has_both_parts(db: aio.Database) -> None:
    await aio.Limit.set(db, "host", slots=1, rate=1, per=600, per_key=True)
    try:
        queue = await aio.TaskQueue.create(db, "pages", task_limits=["host"])
        for key in "aab":
            await queue.put(db, key, limits={"host": key})
        first, second = await queue.take_many(db, 9)
        assert (first.data, second.data) == ("a", "b")
        await queue.ack(db, first)
        assert await queue.take(db, 0) is None
        found = await aio.Limit.open_key(db, "host", "a")
        assert (found.used, found.free) == (0, 0)
        with pytest.raises(InvalidArgument, match="delete it"):
            await aio.Limit.set(db, "host", rate=1, per=1, per_key=True)
        await queue.ack(db, second)
    finally:
        await (await aio.TaskQueue.open(db, "pages")).drop(db)
        await aio.Limit.delete(db, "host")
