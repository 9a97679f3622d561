"""The server in its process: it serves one database at one socket until a signal ends it."""

import asyncio
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from fdbqueue.aio.database import open as aio_open
from fdbqueue.core.signals import heard
from fdbqueue.integrations.beanstalkd.connection import Connection
from fdbqueue.integrations.beanstalkd.server import Server

BACKLOG = 1024


async def serve(
    url: str, root: Any, max_job_size: int, listening: socket.socket, tell: Callable[[], None]
) -> int:
    """Serve until a signal ends the process, and return its number. `tell` is called when it listens.

    SIGUSR1 lets the server take no new jobs.
    """
    loop, ended_by = asyncio.get_running_loop(), list[int]()
    async with aio_open(url) as database:
        server = Server(database, root, max_job_size)
        connect = partial(Connection, server)
        accepting = await loop.create_server(connect, sock=listening, backlog=BACKLOG)
        running = loop.create_task(server.run())

        def end(number: int) -> None:
            ended_by.append(number)
            accepting.close()
            running.cancel()

        loop.add_signal_handler(signal.SIGUSR1, server.drain)
        for number in heard():
            loop.add_signal_handler(number, end, number)
        tell()
        await running
    return ended_by[0] if ended_by else 0
