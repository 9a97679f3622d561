"""The cluster: its own status, which the coordinators collect, as checks.

The status is a JSON document with hundreds of fields, which differ between releases. A field that is missing
leads to no warning.
"""

import json
from collections.abc import Iterator
from typing import Any

from fdbqueue.core import binding, limits
from fdbqueue.core.binding import given_knobs
from fdbqueue.core.database import Database, run
from fdbqueue.operate.diagnosis.check import Check, failure, fine, warning

CHECK = "cluster"
VERSIONS, KNOBS, CLOCK = "client library", "knobs", "clocks"
_STATUS_KEY = b"\xff\xff/status/json"
_LOOK = "Look at `fdbcli --exec 'status details'`."


def see_status(database: Database) -> dict[str, Any]:
    """The status of the cluster, in one round trip to its coordinators."""
    found = run(database, lambda tr: tr.get(_STATUS_KEY).value, timeout_s=limits.CLOSE_TIMEOUT_S)
    status: dict[str, Any] = json.loads(found or b"{}")
    return status


def check_cluster(status: dict[str, Any]) -> list[Check]:
    """Health, performance, disk room and messages."""
    found = [*_health(status), *_limited(status), *_conflicts(status), *_room(status), *_messages(status)]
    return found or [fine(CHECK, "available and healthy, limited by nothing but its load")]


def check_versions(status: dict[str, Any]) -> list[Check]:
    """Versions of the client library, the API and the servers: the servers agree, and none is newer."""
    library, api = binding.library_release(), binding.API_VERSION
    servers = sorted({str(one["version"]) for one in _processes(status) if "version" in one})
    data = {"library": library, "api_version": api, "servers": servers}
    text = f"libfdb_c {library}, API version {api}, servers {', '.join(servers) or 'unknown'}"
    if len(servers) > 1:
        cure = "Finish the upgrade: all servers of a cluster need one release."
        return [warning(VERSIONS, text, cure, **data)]
    return [fine(VERSIONS, text, **data)]


def check_knobs(status: dict[str, Any]) -> list[Check]:
    """Knobs that are set: of this process, and of the servers."""
    servers = sorted({word for one in _processes(status) for word in _knobs_in(one.get("command_line", ""))})
    own = given_knobs()
    text = f"this process: {', '.join(own) or 'none'}; servers: {', '.join(servers) or 'none'}"
    return [fine(KNOBS, text, process=own, servers=servers)]


def check_clock(status: dict[str, Any], now: float) -> list[Check]:
    """The clock of the cluster's controller, which the status tells in whole seconds."""
    controller = status.get("cluster", {}).get("cluster_controller_timestamp")
    if not isinstance(controller, int | float) or abs(controller - now) <= limits.CLOCK_SKEW_S:
        return []
    text = f"the clock of the cluster controller differs from this one by {controller - now:.0f} s"
    cure = "Synchronise the clocks of all machines (chrony, systemd-timesyncd)."
    return [warning(CLOCK, text, cure, difference_s=controller - now)]


def _health(status: dict[str, Any]) -> Iterator[Check]:
    client, data = status.get("client", {}), status.get("cluster", {}).get("data", {}).get("state", {})
    if not client.get("coordinators", {}).get("quorum_reachable", True):
        cure = "Start the machines of the coordinators that the cluster file names."
        yield failure(CHECK, "too few coordinators can be reached", cure)
    if not client.get("database_status", {}).get("available", True):
        recovery = status.get("cluster", {}).get("recovery_state", {}).get("name", "unknown")
        yield failure(
            CHECK, f"the database is not available (recovery: {recovery})", _LOOK, recovery=recovery
        )
    if data.get("healthy") is False:
        text = f"the data is not healthy: {data.get('description') or data.get('name')}"
        yield warning(CHECK, text, _LOOK, state=data.get("name"))


def _limited(status: dict[str, Any]) -> Iterator[Check]:
    limited = status.get("cluster", {}).get("qos", {}).get("performance_limited_by", {})
    if limited.get("name", "workload") != "workload":
        text = f"transactions are held back by {limited['name']}: {limited.get('description', '')}"
        yield warning(CHECK, text.rstrip(": "), _LOOK, limited_by=limited["name"])


def _conflicts(status: dict[str, Any]) -> Iterator[Check]:
    rates = status.get("cluster", {}).get("workload", {}).get("transactions", {})
    committed, conflicted = (rates.get(name, {}).get("hz", 0.0) for name in ("committed", "conflicted"))
    if conflicted > max(limits.CONFLICTS_WARNING_PER_S, committed):
        text = f"{conflicted:.0f} commits a second conflict, and {committed:.0f} succeed"
        cure = "Find the programs that conflict by `Database.counters`, and the hot queues by `fdbqueue top`."
        yield warning(CHECK, text, cure, conflicted_per_s=conflicted, committed_per_s=committed)


def _room(status: dict[str, Any]) -> Iterator[Check]:
    disks = [one.get("disk", {}) for one in _processes(status)]
    for disk in disks:
        free, total = disk.get("free_bytes"), disk.get("total_bytes")
        if free is not None and total and free < limits.DISK_SHARE_MIN * total:
            text = f"a server's disk has {free / total:.0%} of its room left"
            yield warning(CHECK, text, "Make room there, or add storage servers.", free_bytes=free)
            return


def _messages(status: dict[str, Any]) -> Iterator[Check]:
    own = status.get("cluster", {}).get("messages", []) + status.get("client", {}).get("messages", [])
    for message in own + [message for one in _processes(status) for message in one.get("messages", [])]:
        text = message.get("description") or message.get("name") or "unknown"
        yield warning(CHECK, f"the cluster says: {text}", _LOOK, message=message.get("name"))


def _processes(status: dict[str, Any]) -> list[dict[str, Any]]:
    return list(status.get("cluster", {}).get("processes", {}).values())


def _knobs_in(command_line: str) -> list[str]:
    words = command_line.split()
    return [word.removeprefix("--knob_") for word in words if word.startswith("--knob_")]
