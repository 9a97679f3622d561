"""The queues that are compared: how each is opened, puts a small task, takes one and is done with it.

All write to the same disk and return when their writes are on it. A peer that does not flush by default is
configured to; if it cannot be, its caller flushes. The row names the method.
"""

import contextlib
import importlib.util
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from fdb.subspace_impl import Subspace

import fdbqueue
from benchmarks.old_layer import OldQueue

VALUE = "v" * 20
_SERVER_STARTS_S = 10.0


class Client(Protocol):
    """One process's, or one thread's, connection."""

    def put(self) -> object: ...

    def take(self) -> bool:
        """Take a task and be done with it; whether there was one."""

    def close(self) -> object:
        """End its threads and connections, as far as it has a way to."""


@dataclass
class Simple:
    """A client made of functions."""

    put: Callable[[], object]
    take: Callable[[], bool]
    close: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Where:
    """The address for a client, handed to other processes."""

    folder: str
    url: str
    port: int = 0
    space: bytes = b""


@dataclass(frozen=True)
class Peer:
    name: str
    flushes: str
    connect: Callable[[Where], Client]
    module: str = "fdbqueue"
    """The packages that have to be installed."""
    server: Callable[[Where], "list[str]"] | None = None
    """The command that serves clients, on `where.port`, below `where.folder`."""
    layouts: tuple[str, ...] = ("processes",)
    """What several clients of it may be."""

    def missing(self) -> str | None:
        """What keeps it from being compared."""
        if importlib.util.find_spec(self.module) is None:
            return f"no module {self.module}: pip install '.[bench]'"
        if self.server is not None:
            program = self.server(Where("", ""))[0]
            if shutil.which(program) is None:
                return f"no program {program} (Debian: apt-get install {program})"
        return None

    @contextmanager
    def running(self, where: Where) -> Iterator[None]:
        """Its server, on 127.0.0.1, if it has one; stopped afterwards."""
        if self.server is None:
            yield
            return
        command, nothing = self.server(where), subprocess.DEVNULL
        with subprocess.Popen(command, stdout=nothing, stderr=nothing) as server:
            try:
                await_port(where.port)
                yield
            finally:
                server.terminate()


def await_port(port: int) -> None:
    until = time.monotonic() + _SERVER_STARTS_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


# -- on the engine -------------------------------------------------------------------------------------


def raw(where: Where) -> Client:
    """One key of its own read and set in a transaction: the rate of the engine itself."""
    db = fdbqueue.open(where.url)
    space = Subspace(rawPrefix=where.space)["raw"]

    def operation() -> bool:
        key = space.pack((os.getpid(), threading.get_ident()))
        tr = db.create_transaction()
        tr.get(key).wait()
        tr.set(key, VALUE.encode())
        tr.commit().wait()
        return True

    return Simple(operation, operation, db.close)


def recipe_queue(where: Where) -> Client:
    db = fdbqueue.open(where.url)
    space = Subspace(rawPrefix=where.space)
    queue = fdbqueue.Queue(space["queue"], root=space["root"])
    return Simple(lambda: queue.enqueue(db, VALUE), lambda: queue.dequeue(db) is not None, db.close)


def task_queue(where: Where) -> Client:
    db = fdbqueue.open(where.url)
    root = Subspace(rawPrefix=where.space)["root"]
    queue = fdbqueue.TaskQueue.create(db, "tasks", if_not_exists=True, root=root)

    def take() -> bool:
        task = queue.take(db, 0)
        if task is not None:
            queue.ack(db, task)
        return task is not None

    return Simple(lambda: queue.put(db, VALUE), take, db.close)


def old_layer(pop: str, where: Where) -> Client:
    db = fdbqueue.open(where.url)
    queue = OldQueue(db, Subspace(rawPrefix=where.space)["old", pop])
    take = queue.pop_simple if pop == "simple" else queue.pop_contended
    return Simple(lambda: queue.push(VALUE), lambda: take() is not None, db.close)


# -- in a file -----------------------------------------------------------------------------------------


def persist_queue(where: Where) -> Client:
    import persistqueue

    folder = f"{where.folder}/persist-queue"
    queue = persistqueue.SQLiteAckQueue(folder, multithreading=True, auto_resume=False)

    def take() -> bool:
        try:
            item = queue.get(block=False, raw=True)
        except persistqueue.Empty:
            return False
        queue.ack(item)
        return True

    return Simple(lambda: queue.put(VALUE), take)


def litequeue(where: Where) -> Client:
    from litequeue import LiteQueue

    queue = LiteQueue(f"{where.folder}/litequeue.db", timeout=60)
    queue.conn.execute("PRAGMA synchronous = FULL")

    def take() -> bool:
        message = queue.pop()
        if message is not None:
            queue.done(message.message_id)
        return message is not None

    return Simple(lambda: queue.put(VALUE), take)


def huey(where: Where) -> Client:
    from huey import SqliteHuey

    app = SqliteHuey(filename=f"{where.folder}/huey.db", fsync=True, results=False, timeout=60)
    task = app.task()(unchanged)
    return Simple(lambda: task(VALUE), lambda: app.dequeue() is not None)


def unchanged(value: str) -> str:
    return value


def dirq(where: Where) -> Client:
    from dirq.QueueSimple import QueueSimple

    root = Path(where.folder, "dirq")
    queue = QueueSimple(str(root))

    def added() -> str:
        while True:
            try:
                return str(queue.add(VALUE))
            except FileNotFoundError:
                # Names are the time and one of sixteen digits: of two processes that meet, one fails.
                pass

    def put() -> None:
        name = added()
        flush(root / name)
        flush((root / name).parent)

    def take() -> bool:
        name = locked(queue.next) or locked(queue.first)  # names are listed anew when they have run out
        if name:
            queue.get(name)
            queue.remove(name)
            flush((root / name).parent)
        return bool(name)

    def locked(following: Callable[[], str]) -> str:
        """The next task that no other client has, or an empty text."""
        name = following()
        while name and not queue.lock(name):
            name = queue.next()
        return name

    return Simple(put, take)


def flush(path: Path) -> None:
    """fsync a file, or a directory, unless another process has removed it meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- served --------------------------------------------------------------------------------------------


class Beanstalk:
    """beanstalkd's protocol, as far as it takes: put, reserve, delete."""

    def __init__(self, where: Where) -> None:
        self._socket = socket.create_connection(("127.0.0.1", where.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._replies = self._socket.makefile("rb")

    def put(self) -> None:
        self._say(f"put 0 0 600 {len(VALUE)}\r\n{VALUE}", b"INSERTED")

    def take(self) -> bool:
        reply = self._say("reserve-with-timeout 0", b"RESERVED", b"TIMED_OUT")
        if reply[0] == b"TIMED_OUT":
            return False
        self._replies.read(int(reply[2]) + 2)
        self._say(f"delete {int(reply[1])}", b"DELETED")
        return True

    def _say(self, command: str, *expected: bytes) -> list[bytes]:
        self._socket.sendall(command.encode() + b"\r\n")
        reply = self._replies.readline().split()
        if not reply or reply[0] not in expected:
            raise RuntimeError(f"beanstalkd answers {reply} to {command.split()[0]}")
        return reply

    def close(self) -> None:
        self._replies.close()
        self._socket.close()


def beanstalkd_command(where: Where) -> list[str]:
    if where.folder:
        Path(where.folder, "beanstalkd").mkdir()
    return ["beanstalkd", "-l", "127.0.0.1", "-p", str(where.port), "-b", f"{where.folder}/beanstalkd", "-f0"]


def redis_command(where: Where) -> list[str]:
    options = {"bind": "127.0.0.1", "port": where.port, "dir": where.folder, "save": ""}
    options |= {"appendonly": "yes", "appendfsync": "always"}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    return ["redis-server", *flags]


class RedisQueue:
    """RQ: its queue, and its worker's own loop for one job, in this process (no fork for each job)."""

    def __init__(self, where: Where) -> None:
        import logging

        from redis import Redis
        from rq import Queue, SimpleWorker

        logging.getLogger("rq.worker").setLevel(logging.WARNING)
        connection = Redis(port=where.port)
        self._queue = Queue("tasks", connection=connection)
        self._worker = SimpleWorker([self._queue], connection=connection)

    def put(self) -> None:
        self._queue.enqueue("operator.index", 1, result_ttl=0)

    def take(self) -> bool:
        found = self._worker.dequeue_job_and_maintain_ttl(None)
        if found is not None:
            self._worker.execute_job(*found)
        return found is not None

    def close(self) -> None:
        self._queue.connection.close()


THREADS, BOTH = ("threads",), ("processes", "threads")

PEERS = [
    Peer("raw one-key transactions", "the engine", raw, layouts=BOTH),
    Peer("fdbqueue Queue: enqueue, dequeue", "the engine", recipe_queue, layouts=BOTH),
    Peer("fdbqueue TaskQueue: put, take + ack", "the engine", task_queue, layouts=BOTH),
    Peer("old layer, simple pop", "the engine", partial(old_layer, "simple")),
    Peer("old layer, high-contention pop", "the engine", partial(old_layer, "contended")),
    Peer("persist-queue, SQLiteAckQueue", "SQLite, full", persist_queue, "persistqueue", layouts=THREADS),
    Peer("litequeue", "SQLite, told to", litequeue, "litequeue"),
    Peer("huey, SQLite", "SQLite, fsync=True; no ack: taken is gone", huey, "huey"),
    Peer("dirq, QueueSimple", "its caller: file and directory", dirq, "dirq"),
    Peer("beanstalkd", "-b -f0", Beanstalk, server=beanstalkd_command),
    Peer("Redis + RQ", "appendfsync always", RedisQueue, "rq", server=redis_command),
]
