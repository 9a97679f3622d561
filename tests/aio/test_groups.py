"""Groups, awaited."""

from contextlib import suppress

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import aio
from fdbqueue.core.errors import GroupClosed, InvalidArgument
from tests.aio.support import on_loop


@on_loop
async def test_a_group_of_one_transaction_starts_its_task(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        images = await aio.TaskQueue.create(db, "images", root=root)
        reports = await aio.TaskQueue.create(db, "reports", root=root)

        @aio.transactional
        async def begin(tr: aio.Transaction) -> aio.Group:
            async with aio.group(tr, then=(reports, "done"), root=root) as g:
                await g.put(images, 1)
                await g.put_many(images, [2, 3])
            return g.group

        group = await begin(db)
        assert (await group.progress(db)).left == 3
        for _ in range(3):
            task = await images.take(db, 0)
            assert task is not None
            await images.ack(db, task)
        assert (await group.wait(db, 60)).done == 3
        then = await reports.take(db, 60)
        assert then is not None
        assert then.data == "done"
        assert [one.id for one in await aio.list_groups(db, root=root)] == [group.id]


@on_loop
async def test_a_group_of_a_failed_block_stays_open(url: str, root: Subspace) -> None:
    """The caller may catch the error, and put the other members in the same transaction."""
    async with aio.open(url) as db:
        images = await aio.TaskQueue.create(db, "images", root=root)

        @aio.transactional
        async def begin(tr: aio.Transaction) -> aio.Group:
            made: list[aio.Group] = []
            with suppress(KeyError):
                async with aio.group(tr, root=root) as g:
                    made.append(g.group)
                    await g.put(images, 1)
                    raise KeyError("planned")
            await made[0].put(tr, images, 2)
            return made[0]

        assert (await (await begin(db)).progress(db)).left == 2


@on_loop
async def test_an_open_group_is_filled_and_cancelled(url: str, root: Subspace) -> None:
    async with aio.open(url) as db:
        images = await aio.TaskQueue.create(db, "images", root=root)
        group = await aio.Group.create(db, root=root)
        await group.put(db, images, 1)
        await images.put(db, 2, group=group)
        same = await aio.Group.open(db, group.id, root=root)
        seen = await same.progress(db)
        await same.cancel(db)
        assert await group.wait_for_progress(db, seen, 60) is not None
        assert (await group.wait(db, 60)).failed == 2
        with pytest.raises(GroupClosed):
            await group.put(db, images, 3)
        with pytest.raises(InvalidArgument):
            async with aio.group(db, root=root):  # type: ignore[arg-type]
                pass
