"""Looks of the server: the statistics of jobs, tubes and itself, each from one transaction or a few."""

import os
import resource
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from fdbqueue.aio.hub import Unheard
from fdbqueue.core.database import run
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN
from fdbqueue.core.version import __version__
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.jobs import QUEUE_PREFIX, SECOND_US
from fdbqueue.integrations.beanstalkd.server import Server
from fdbqueue.operate.figures import TaskFigures
from fdbqueue.operate.overview import Overview
from fdbqueue.tasks.stored.records import NEVER_US

T = TypeVar("T")
_STATES: Mapping[str, str] = {READY: "ready", TAKEN: "reserved", DELAYED: "delayed", BURIED: "buried"}
_HIDDEN = frozenset({"quit", "reserve-job", "kick-job"})
"""Commands that beanstalkd does not tell of."""


class Figures:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._overview = Overview(queues_only=True, root=server.jobs.root)
        self._started = server.loop.time()
        self._id = server.random_bytes(8).hex()

    async def peek(self, number: int) -> bytes:
        found = await self._look(lambda tr: self._server.jobs.look(tr, number))
        return protocol.NOT_FOUND if found is None else protocol.with_body("FOUND", number, found[2])

    async def of_job(self, number: int) -> bytes:
        found = await self._look(lambda tr: self._server.jobs.look(tr, number))
        if found is None:
            return protocol.NOT_FOUND
        row, record, _ = found
        now_us = self._server.runtime.now_us()
        timed = record.state in (TAKEN, DELAYED) and record.until_us != NEVER_US
        return protocol.figures(
            {
                "id": number,
                "tube": _quoted(row.tube),
                "state": _STATES[record.state],
                "pri": record.pri,
                "age": max(0, now_us - record.created_us) // SECOND_US,
                "delay": row.delay_s,
                "ttr": record.ttr_us // SECOND_US,
                "time-left": (record.until_us - now_us) // SECOND_US if timed else 0,
                "file": 0,
                "reserves": record.attempts,
                "timeouts": record.failures,
                "releases": row.releases,
                "buries": row.buries,
                "kicks": row.kicks,
            }
        )

    async def of_tube(self, name: str) -> bytes:
        found = (await self._stored()).get(name)
        if found is not None and found.delayed + found.taken:
            await self._server.database.hub.call(partial(self._server.jobs.sweep, name), Unheard())
            found = (await self._stored()).get(name)
        if not self._exists(name, found):
            return protocol.NOT_FOUND
        known = self._server.tubes.get(name)
        left_s = 0 if known is None else known.paused_until - self._server.loop.time()
        jobs = await self._counts({} if found is None else {name: found})
        return protocol.figures(
            {
                "name": _quoted(name),
                **jobs,
                "total-jobs": 0 if known is None else known.jobs,
                "current-using": 0 if known is None else known.using,
                "current-watching": 0 if known is None else known.watching,
                "current-waiting": 0 if known is None else len(known.waiters),
                "cmd-delete": 0 if known is None else known.deletes,
                "cmd-pause-tube": 0 if known is None else known.pauses,
                "pause": 0 if known is None else known.pause_s,
                "pause-time-left": max(0, int(left_s)),
            }
        )

    async def of_server(self) -> bytes:
        server, stored = self._server, await self._stored()
        connections, usage = server.connections, resource.getrusage(resource.RUSAGE_SELF)
        for connection in connections:
            connection.margin_s()  # counts the leases that are over
        counted = {f"cmd-{name}": server.commands[name] for name in protocol.NAMES if name not in _HIDDEN}
        uname = os.uname()
        return protocol.figures(
            {
                **await self._counts(stored),
                **counted,
                "job-timeouts": server.timeouts,
                "total-jobs": server.total_jobs,
                "max-job-size": server.max_job_size,
                "current-tubes": len(self._names(stored)),
                "current-connections": len(connections),
                "current-producers": sum(connection.is_producer for connection in connections),
                "current-workers": sum(connection.is_worker for connection in connections),
                "current-waiting": sum(connection.waiter is not None for connection in connections),
                "total-connections": server.connections_seen,
                "pid": server.runtime.process_id(),
                "version": _quoted(f"fdbqueue {__version__}"),
                "rusage-utime": f"{usage.ru_utime:.6f}",
                "rusage-stime": f"{usage.ru_stime:.6f}",
                "uptime": int(server.loop.time() - self._started),
                "binlog-oldest-index": 0,
                "binlog-current-index": 0,
                "binlog-records-migrated": 0,
                "binlog-records-written": 0,
                "binlog-max-size": 0,
                "draining": str(server.is_draining).lower(),
                "id": self._id,
                "hostname": _quoted(uname.nodename),
                "os": _quoted(uname.version),
                "platform": _quoted(uname.machine),
            }
        )

    async def tubes(self) -> bytes:
        return protocol.listing(self._names(await self._stored()))

    async def has_tube(self, name: str) -> bool:
        known = self._server.tubes.get(name)
        return (known is not None and known.is_used) or self._exists(name, (await self._stored()).get(name))

    def _exists(self, name: str, found: TaskFigures | None) -> bool:
        """True for a tube that a connection refers to, or that has jobs."""
        known = self._server.tubes.get(name)
        return (known is not None and known.is_used) or (found is not None and _size(found) > 0)

    def _names(self, stored: Mapping[str, TaskFigures]) -> list[str]:
        names = dict.fromkeys([*self._server.tubes, *stored])
        return [name for name in names if self._exists(name, stored.get(name))]

    async def _stored(self) -> dict[str, TaskFigures]:
        """The figures of the queues of tubes."""
        found = await self._server.database.run_blocking(self._overview.figures)
        start = len(QUEUE_PREFIX)
        return {
            queue.name[start:]: queue.tasks
            for queue in found.queues
            if queue.name.startswith(QUEUE_PREFIX) and queue.tasks is not None
        }

    async def _counts(self, stored: Mapping[str, TaskFigures]) -> dict[str, int]:
        jobs, figures = self._server.jobs, list(stored.values())
        busy = [name for name, one in stored.items() if one.ready]
        urgent = await self._look(lambda tr: [jobs.urgent(tr, name) for name in busy])
        return {
            "current-jobs-urgent": sum(urgent),
            "current-jobs-ready": sum(one.ready for one in figures),
            "current-jobs-reserved": sum(one.taken for one in figures),
            "current-jobs-delayed": sum(one.delayed for one in figures),
            "current-jobs-buried": sum(one.buried for one in figures),
        }

    async def _look(self, body: Callable[[Any], T]) -> T:
        database = self._server.database
        return await database.run_blocking(lambda blocking: run(blocking, partial(_writable, body)))


def _writable(body: Callable[[Any], T], tr: Any) -> T:
    return body(tr)


def _size(one: TaskFigures) -> int:
    return one.ready + one.taken + one.delayed + one.buried


def _quoted(text: str) -> str:
    return f'"{text}"'
