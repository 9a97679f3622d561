"""Figures of the server, of tubes and of jobs, as the mappings of their commands."""

import os
import resource
from collections.abc import Mapping
from functools import partial

from fdbqueue.aio.hub import Unheard
from fdbqueue.core.database import run
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN
from fdbqueue.core.version import __version__
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.batches import Kind
from fdbqueue.integrations.beanstalkd.jobs import QUEUE_PREFIX, SECOND_US
from fdbqueue.integrations.beanstalkd.keys import Row
from fdbqueue.integrations.beanstalkd.server import Server
from fdbqueue.integrations.beanstalkd.tubes import Tube
from fdbqueue.operate.figures import TaskFigures
from fdbqueue.operate.overview import Overview
from fdbqueue.tasks.stored.records import NEVER_US, Record

_STATES: Mapping[str, str] = {READY: "ready", TAKEN: "reserved", DELAYED: "delayed", BURIED: "buried"}
_COUNTED = protocol.NAMES - {"quit", "reserve-job", "kick-job"}
"""Commands that beanstalkd tells of."""
_LOG = dict.fromkeys(("oldest-index", "current-index", "records-migrated", "records-written", "max-size"), 0)
_UNKNOWN = Tube("")


def of_job(now_us: int, found: tuple[int, Row, Record, bytes]) -> bytes:
    number, row, record, _ = found
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


class Figures:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._overview = Overview(queues_only=True, root=server.jobs.root)
        self._started = server.loop.time()
        self._id = server.runtime.random_bytes(8).hex()

    async def of_tube(self, name: str) -> bytes:
        server, stored = self._server, await self._stored()
        if name in stored and stored[name].delayed + stored[name].taken:
            tidy = partial(run, server.jobs.database, server.jobs.parts(name).tidy)
            await server.database.hub.call(tidy, Unheard())
            stored = await self._stored()
        if not self.has(name, stored):
            return protocol.NOT_FOUND
        known = server.tubes.get(name, _UNKNOWN)
        return protocol.figures(
            {
                "name": _quoted(name),
                **await self._counts({name: stored[name]} if name in stored else {}),
                "total-jobs": known.jobs,
                "current-using": known.using,
                "current-watching": known.watching,
                "current-waiting": len(known.waiters),
                "cmd-delete": known.deletes,
                "cmd-pause-tube": known.pauses,
                "pause": known.pause_s,
                "pause-time-left": max(0, int(known.paused_until - server.loop.time())),
            }
        )

    async def of_server(self) -> bytes:
        server, stored = self._server, await self._stored()
        peers, usage, uname = server.connections, resource.getrusage(resource.RUSAGE_SELF), os.uname()
        for peer in peers:
            peer.margin_s()  # counts the leases that are over
        return protocol.figures(
            {
                **await self._counts(stored),
                **{f"cmd-{name}": server.commands[name] for name in sorted(_COUNTED)},
                "job-timeouts": server.timeouts,
                "total-jobs": server.total_jobs,
                "max-job-size": server.max_job_size,
                "current-tubes": len(self._names(stored)),
                "current-connections": len(peers),
                "current-producers": sum(peer.is_producer for peer in peers),
                "current-workers": sum(peer.is_worker for peer in peers),
                "current-waiting": sum(peer.waiter is not None for peer in peers),
                "total-connections": server.connections_seen,
                "pid": server.runtime.process_id(),
                "version": _quoted(f"fdbqueue {__version__}"),
                "rusage-utime": f"{usage.ru_utime:.6f}",
                "rusage-stime": f"{usage.ru_stime:.6f}",
                "uptime": int(server.loop.time() - self._started),
                **{f"binlog-{name}": value for name, value in _LOG.items()},
                "draining": str(server.is_draining).lower(),
                "id": self._id,
                "hostname": _quoted(uname.nodename),
                "os": _quoted(uname.version),
                "platform": _quoted(uname.machine),
            }
        )

    async def list_tubes(self) -> bytes:
        return protocol.listing(self._names(await self._stored()))

    async def pause(self, name: str, seconds: int) -> bytes:
        if not self.has(name, await self._stored()):
            return protocol.NOT_FOUND
        tube = self._server.enter(name)
        if tube is None:
            return protocol.OUT_OF_MEMORY
        self._server.pause(tube, seconds)
        return protocol.PAUSED

    def has(self, name: str, stored: Mapping[str, TaskFigures]) -> bool:
        """True for a tube that a connection refers to, or that has jobs."""
        is_used = self._server.tubes.get(name, _UNKNOWN).is_used
        return is_used or (name in stored and _size(stored[name]) > 0)

    def _names(self, stored: Mapping[str, TaskFigures]) -> list[str]:
        return [name for name in dict.fromkeys([*self._server.tubes, *stored]) if self.has(name, stored)]

    async def _stored(self) -> dict[str, TaskFigures]:
        """The figures of the queues of tubes."""
        found = await self._server.database.run_blocking(self._overview.figures)
        return {
            queue.name.removeprefix(QUEUE_PREFIX): queue.tasks
            for queue in found.queues
            if queue.name.startswith(QUEUE_PREFIX) and queue.tasks is not None
        }

    async def _counts(self, stored: Mapping[str, TaskFigures]) -> dict[str, int]:
        urgent, figures = 0, list(stored.values())
        for name, one in stored.items():
            if one.ready:  # each in a transaction of its own: many tubes would take one too much time
                verb = partial(self._server.jobs.urgent, tube=name)
                answer: int | bytes = await self._server.answered(Kind.LOOK, (name,), verb)
                urgent += answer if isinstance(answer, int) else 0
        return {
            "current-jobs-urgent": urgent,
            "current-jobs-ready": sum(one.ready for one in figures),
            "current-jobs-reserved": sum(one.taken for one in figures),
            "current-jobs-delayed": sum(one.delayed for one in figures),
            "current-jobs-buried": sum(one.buried for one in figures),
        }


def _size(one: TaskFigures) -> int:
    return one.ready + one.taken + one.delayed + one.buried


def _quoted(text: str) -> str:
    return f'"{text}"'
