"""Our server beside beanstalkd: python -m benchmarks.beanstalkd [--jobs N] [--folder DIR]

Both run at once, and are measured in turn: puts, and then reserves with deletes, by 1, 8 and 64 connections.
beanstalkd syncs each write (`-b DIR -f0`), and ours commits to a directory beside it. Jobs have 100 bytes.
"""

import argparse
import asyncio
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

BODY = b"x" * 100
CONNECTIONS = (1, 8, 64)
START_S = 10.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Work = Callable[[Streams], Coroutine[Any, Any, None]]


@contextmanager
def ours(folder: str) -> Iterator[int]:
    """Our server at a free port."""
    program = [sys.executable, "-m", "fdbqueue.operate.cli", "--url", f"embedded:{folder}", "serve"]
    command = [*program, "--create", "--beanstalkd", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r":(\d+)$", process.stderr.readline())
        assert found is not None
        yield int(found[1])
        process.terminate()


@contextmanager
def theirs(program: str, folder: str) -> Iterator[int]:
    """beanstalkd at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    command = [program, "-l", "127.0.0.1", "-p", str(port), "-b", folder, "-f0"]
    with subprocess.Popen(command) as process:
        until = time.monotonic() + START_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        yield port
        process.terminate()


async def put(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"put 0 0 100 %d\r\n%b\r\n" % (len(BODY), BODY))
    assert (await reader.readline()).startswith(b"INSERTED")


async def reserve_and_delete(streams: Streams) -> None:
    reader, writer = streams
    writer.write(b"reserve\r\n")
    number = int((await reader.readline()).split()[1])
    await reader.readexactly(len(BODY) + 2)
    writer.write(b"delete %d\r\n" % number)
    assert await reader.readline() == b"DELETED\r\n"


async def rate(port: int, connections: int, jobs: int, work: Work) -> float:
    """Jobs in a second."""

    async def repeat(streams: Streams) -> None:
        for _ in range(jobs // connections):
            await work(streams)

    opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections)]
    began = time.perf_counter()
    await asyncio.gather(*map(repeat, opened))
    took_s = time.perf_counter() - began
    for _, writer in opened:
        writer.close()
    return jobs // connections * connections / took_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=6_400)
    parser.add_argument("--folder", help="where both keep their jobs")
    arguments = parser.parse_args()
    program = shutil.which("beanstalkd")
    if program is None:
        parser.error("beanstalkd is not installed")
    with ExitStack() as stack:
        here, there = (
            stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder)) for _ in range(2)
        )
        ports = stack.enter_context(ours(here)), stack.enter_context(theirs(program, there))
        print("connections  work                  ours/s  theirs/s  share")
        for connections in CONNECTIONS:
            for work in (put, reserve_and_delete):
                mine, other = (asyncio.run(rate(port, connections, arguments.jobs, work)) for port in ports)
                name = work.__name__.replace("_", " ")
                print(f"{connections:11}  {name:20}  {mine:6.0f}  {other:8.0f}  {mine / other:5.2f}")


if __name__ == "__main__":
    main()
