"""The server in its process: it serves one database at one address until a signal ends it."""

import asyncio
import signal
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from fdbqueue.aio.database import open as aio_open
from fdbqueue.core.signals import heard
from fdbqueue.integrations.beanstalkd.connection import Connection
from fdbqueue.integrations.beanstalkd.figures import Figures
from fdbqueue.integrations.beanstalkd.server import Server

Listen = Callable[[Callable[[], Connection]], Coroutine[Any, Any, asyncio.Server]]
"""Listens at an address. Is given the function that makes a connection."""


async def serve(url: str, root: Any, max_job_size: int, listen: Listen, tell: Callable[[], None]) -> int:
    """Serve until a signal ends the process, and return its number. `tell` is called when it listens.

    SIGUSR1 lets the server take no new jobs.
    """
    loop, ended_by = asyncio.get_running_loop(), Counter[int]()
    async with aio_open(url) as database:
        server = Server(database, root, max_job_size)
        connect = partial(Connection, server, Figures(server))
        running = loop.create_task(server.run(await listen(connect)))

        def end(number: int) -> None:
            ended_by[number] += 1
            running.cancel()

        loop.add_signal_handler(signal.SIGUSR1, server.drain)
        for number in heard():
            loop.add_signal_handler(number, end, number)
        tell()
        await running
    return next(iter(ended_by), 0)
