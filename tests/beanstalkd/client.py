"""A client for tests, and the servers that it talks to: ours, and beanstalkd itself."""

import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import PATIENCE_S, wait_until

BEANSTALKD = shutil.which("beanstalkd")
_WITH_BODY = re.compile(rb"(?:OK|RESERVED \d+|FOUND \d+) (\d+)\r\n")


class Client:
    """A connection: each command, and its whole reply."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._read = self.socket.makefile("rb")

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._read.close()
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> bytes:
        """The next reply, with its body."""
        line = self._read.readline()
        found = _WITH_BODY.fullmatch(line)
        return line if found is None else line + self._read.read(int(found[1]) + 2)

    def ask(self, line: str, body: bytes | None = None) -> bytes:
        self.send(line.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n"))
        return self.reply()

    def put(self, body: bytes = b"job", pri: int = 0, delay: int = 0, ttr: int = 100) -> int:
        """The number of the new job."""
        reply = self.ask(f"put {pri} {delay} {ttr} {len(body)}", body)
        assert reply.startswith(b"INSERTED "), reply
        return int(reply.split()[1])

    def reserve(self, timeout: int = 0) -> tuple[int, bytes]:
        reply = self.ask(f"reserve-with-timeout {timeout}")
        assert reply.startswith(b"RESERVED "), reply
        line, _, rest = reply.partition(b"\r\n")
        return int(line.split()[1]), rest[:-2]

    def figures(self, line: str) -> dict[str, str]:
        return figures_in(self.ask(line))


def figures_in(reply: bytes) -> dict[str, str]:
    """The mapping of a reply; values as texts, without quotes."""
    assert reply.startswith(b"OK "), reply
    pairs = [row.split(": ", 1) for row in reply.decode().splitlines() if ": " in row]
    return {name: value.strip('"') for name, value in pairs}


def names_in(reply: bytes) -> list[str]:
    """The list of a reply."""
    assert reply.startswith(b"OK "), reply
    return [row[2:] for row in reply.decode().splitlines() if row.startswith("- ")]


class Served:
    """A server in a process of its own."""

    def __init__(self, process: Any, port: int) -> None:
        self.process = process
        self.port = port

    def client(self) -> Client:
        return Client(self.port)

    def end(self, by: int = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return int(self.process.wait(timeout=PATIENCE_S))


@contextmanager
def serving(url: str, root: str, *options: str) -> Iterator[Served]:
    """Our server, at a free port."""
    program = [sys.executable, "-m", "fdbqueue.operate.cli", "--url", url, "--root", root, "serve"]
    arguments = ["--beanstalkd", "127.0.0.1:0", *([] if url.startswith("fdb") else ["--create"]), *options]
    here = Path(__file__).parents[2]
    process = subprocess.Popen([*program, *arguments], cwd=here, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"at 127\.0\.0\.1:(\d+)", line)
        assert found is not None, line + process.stderr.read()
        yield Served(process, int(found[1]))
    finally:
        process.kill()
        process.communicate()


@contextmanager
def beanstalkd(*options: str) -> Iterator[Served]:
    """The original, at a free port."""
    assert BEANSTALKD is not None
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([BEANSTALKD, "-l", "127.0.0.1", "-p", str(port), *options])
    try:
        wait_until(lambda: _answers(port))
        yield Served(process, port)
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True


def wait_for(client: Client, line: str, reply: bytes) -> None:
    """Repeat a command until it has that reply."""
    until = time.monotonic() + PATIENCE_S
    while (got := client.ask(line)) != reply:
        assert time.monotonic() < until, got
        time.sleep(0.02)
