"""Commands about the server and its tubes, and the mappings of figures that are their replies."""

import os
import resource
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from fdbqueue.aio.hub import Unheard
from fdbqueue.core.database import run
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN
from fdbqueue.core.version import __version__
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.batches import Kind
from fdbqueue.integrations.beanstalkd.jobs import QUEUE_PREFIX, SECOND_US
from fdbqueue.integrations.beanstalkd.keys import Row
from fdbqueue.integrations.beanstalkd.protocol import Command
from fdbqueue.integrations.beanstalkd.server import Server, Tube
from fdbqueue.operate.figures import TaskFigures
from fdbqueue.tasks.stored.records import NEVER_US, Record

_STATES: Mapping[str, str] = {READY: "ready", TAKEN: "reserved", DELAYED: "delayed", BURIED: "buried"}
_COUNTED = protocol.NAMES - {"quit", "reserve-job", "kick-job"}
"""Commands that beanstalkd tells of."""
_LOG = ("oldest-index", "current-index", "records-migrated", "records-written", "max-size")
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


async def of_tube(server: Server, command: Command) -> bytes:
    name, stored = command.tube, await _stored(server)
    if name in stored and stored[name].delayed + stored[name].taken:
        tidy = partial(run, server.jobs.database, server.jobs.parts(name).tidy)
        await server.database.hub.call(tidy, Unheard())
        stored = await _stored(server)
    if not _has(server, name, stored):
        return protocol.NOT_FOUND
    known = server.tubes.get(name, _UNKNOWN)
    return protocol.figures(
        {
            "name": _quoted(name),
            **await _counts(server, {name: stored[name]} if name in stored else {}),
            "total-jobs": known.jobs,
            "current-using": known.using,
            "current-watching": known.watching,
            "current-waiting": len(known.waiters),
            "cmd-delete": known.deletes,
            "cmd-pause-tube": known.pauses,
            "pause": known.pause_s,
            "pause-time-left": int(known.unpause.when() - server.loop.time()) if known.unpause else 0,
        }
    )


async def of_server(server: Server, _: Command) -> bytes:
    peers, stored = server.connections, await _stored(server)
    usage, uname = resource.getrusage(resource.RUSAGE_SELF), os.uname()
    for peer in peers:
        peer.margin_s()  # counts the leases that are over
    return protocol.figures(
        {
            **await _counts(server, stored),
            **{f"cmd-{name}": server.commands[name] for name in sorted(_COUNTED)},
            "job-timeouts": server.timeouts,
            "total-jobs": server.total_jobs,
            "max-job-size": server.max_job_size,
            "current-tubes": len(_tubes(server, stored)),
            "current-connections": len(peers),
            "current-producers": sum(peer.is_producer for peer in peers),
            "current-workers": sum(peer.is_worker for peer in peers),
            "current-waiting": sum(peer.waiter is not None for peer in peers),
            "total-connections": server.connections_seen,
            "pid": server.runtime.process_id(),
            "version": _quoted(f"fdbqueue {__version__}"),
            "rusage-utime": f"{usage.ru_utime:.6f}",
            "rusage-stime": f"{usage.ru_stime:.6f}",
            "uptime": int(server.loop.time() - server.started),
            **{f"binlog-{name}": 0 for name in _LOG},
            "draining": str(server.is_draining).lower(),
            "id": server.id,
            "hostname": _quoted(uname.nodename),
            "os": _quoted(uname.version),
            "platform": _quoted(uname.machine),
        }
    )


async def list_tubes(server: Server, _: Command) -> bytes:
    return protocol.listing(_tubes(server, await _stored(server)))


async def pause_tube(server: Server, command: Command) -> bytes:
    if not _has(server, command.tube, await _stored(server)):
        return protocol.NOT_FOUND
    server.pause(server.enter(command.tube), max(command.numbers[0], 1))
    return b"PAUSED"


COMMANDS: Mapping[str, Callable[[Server, Command], Awaitable[bytes]]] = {
    "stats": of_server,
    "stats-tube": of_tube,
    "list-tubes": list_tubes,
    "pause-tube": pause_tube,
}


async def _stored(server: Server) -> dict[str, TaskFigures]:
    """The figures of the queues of tubes."""
    found = await server.database.run_blocking(server.overview.figures)
    return {
        queue.name.removeprefix(QUEUE_PREFIX): queue.tasks
        for queue in found.queues
        if queue.name.startswith(QUEUE_PREFIX) and queue.tasks is not None
    }


def _has(server: Server, name: str, stored: Mapping[str, TaskFigures]) -> bool:
    """True for a tube that a connection refers to, or that has jobs."""
    one = stored.get(name)
    has_jobs = one is not None and one.ready + one.taken + one.delayed + one.buried > 0
    return has_jobs or server.tubes.get(name, _UNKNOWN).is_used


def _tubes(server: Server, stored: Mapping[str, TaskFigures]) -> list[str]:
    return [name for name in dict.fromkeys([*server.tubes, *stored]) if _has(server, name, stored)]


async def _counts(server: Server, stored: Mapping[str, TaskFigures]) -> dict[str, int]:
    urgent, figures = 0, stored.values()
    for name, one in stored.items():
        if one.ready:  # each in a transaction of its own: many tubes would take one too much time
            urgent += await server.ask(Kind.LOOK, partial(server.jobs.urgent, tube=name), name)
    return {
        "current-jobs-urgent": urgent,
        "current-jobs-ready": sum(one.ready for one in figures),
        "current-jobs-reserved": sum(one.taken for one in figures),
        "current-jobs-delayed": sum(one.delayed for one in figures),
        "current-jobs-buried": sum(one.buried for one in figures),
    }


def _quoted(text: str) -> str:
    return f'"{text}"'
