"""A queue that is full under load gets a larger capacity: waiting producers go on at once, and nothing stops.

    python -m examples.growing                      # or with asyncio: python -m examples.growing --asyncio

The database is that of $FDBQUEUE_URL, or else ./fdbqueue-data.
"""

import asyncio
import sys
import threading

import fdbqueue
from fdbqueue import aio

PRODUCERS, SMALL, LARGE = 8, 2, 100


def grow(url: str | None = None) -> list[str]:
    """Return what each step has found."""
    with fdbqueue.open(url) as db:
        shop = fdbqueue.TaskQueue.create(db, "shop", "limfifottl", capacity=SMALL, if_not_exists="any")
        shop.alter(db, capacity=SMALL, ttr=None)
        producers = [
            threading.Thread(target=shop.put, args=(db, number), kwargs={"timeout": 60})
            for number in range(PRODUCERS)
        ]
        for producer in producers:
            producer.start()
        done = [shop.ack(db, task) for task in shop.take_many(db, SMALL, 60)]
        change = shop.alter(db, capacity=LARGE, ttr=90)
        for producer in producers:
            producer.join()
        shop.alter(db, capacity=SMALL)  # more tasks are there: they run out
        done += [shop.ack(db, task) for task in shop.take_many(db, PRODUCERS)]
        return [f"{len(done)} tasks of {PRODUCERS} producers", *map(told, change.changes.items())]


async def grow_awaited(url: str | None = None) -> list[str]:
    """As `grow`, with asyncio."""
    async with aio.open(url) as db:
        shop = await aio.TaskQueue.create(db, "shop", "limfifottl", capacity=SMALL, if_not_exists="any")
        await shop.alter(db, capacity=SMALL, ttr=None)
        producers = asyncio.gather(*(shop.put(db, number, timeout=60) for number in range(PRODUCERS)))
        done = [await shop.ack(db, task) for task in await shop.take_many(db, SMALL, 60)]
        change = await shop.alter(db, capacity=LARGE, ttr=90)
        await producers
        await shop.alter(db, capacity=SMALL)
        done += [await shop.ack(db, task) for task in await shop.take_many(db, PRODUCERS)]
        return [f"{len(done)} tasks of {PRODUCERS} producers", *map(told, change.changes.items())]


def told(change: tuple[str, tuple[object, object]]) -> str:
    name, (before, after) = change
    return f"{name}: {before} to {after}"


if __name__ == "__main__":
    print(*(asyncio.run(grow_awaited()) if "--asyncio" in sys.argv else grow()), sep="\n")
