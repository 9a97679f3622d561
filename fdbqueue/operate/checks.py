"""The checks of a database and of a process: each reads first, and then decides on values, in pure functions.

Diagnosis and Check are the public frozen values that `diagnose` returns.

This process: its versions, the latency of its transactions, and its open files and those of workers here.
The commit that is timed clears the key of a receipt that does not exist. It takes the way of every commit,
and leaves nothing behind. An embedded database, each connection and each watched socket is an open file. A
process at its limit can neither connect nor commit.

Clocks: the differences between the clocks of processes, from their heartbeats. A heartbeat tells the time of
its process. If it is renewed between two looks, it was written between them: a time outside of these two is
the difference of two clocks, at the least. If it is not renewed, a time that has not come yet is one. And the
hold of a heartbeat has its time by the clock of the database, which tells its age to some seconds.

The directory of the embedded engine: its format, its room, its journal, and readers of old versions.

The cluster: its own status, which the coordinators collect. The status is a JSON document with hundreds of
fields, which differ between releases. A field that is missing leads to no warning.
"""

import json
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from operator import methodcaller
from statistics import median
from typing import Any

from fdbqueue.core import binding, limits
from fdbqueue.core.binding import given_knobs
from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import StorageReplaced
from fdbqueue.core.pace import manner_of
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.seam import EXACT, Transaction
from fdbqueue.core.sessions.ending import age_of, ask_holder
from fdbqueue.core.version import __version__
from fdbqueue.core.visible import counted
from fdbqueue.embedded import durability, layout
from fdbqueue.embedded.directory import LockHolder
from fdbqueue.embedded.environment import PRIVATE
from fdbqueue.embedded.journal import FILES, Place
from fdbqueue.embedded.store import Store
from fdbqueue.fleet.gate import Order
from fdbqueue.fleet.steering import Member, releases


class Severity(StrEnum):
    """The weight of a check, in ascending order."""

    FINE = "fine"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    """Its name in docs/operations.md, such as "clocks". One check may have several results."""
    severity: Severity
    text: str
    cure: str = ""
    """The next step; empty if all is fine."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The numbers and names of the text, for programs."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The results of all checks, in order."""

    checks: tuple[Check, ...]

    @property
    def severity(self) -> Severity:
        """The severity of the weightiest check."""
        order = list(Severity)
        return max((check.severity for check in self.checks), key=order.index, default=Severity.FINE)


def fine(name: str, text: str, **data: Any) -> Check:
    return Check(name, Severity.FINE, text, "", data)


def warning(name: str, text: str, cure: str, **data: Any) -> Check:
    return Check(name, Severity.WARNING, text, cure, data)


def failure(name: str, text: str, cure: str, **data: Any) -> Check:
    return Check(name, Severity.FAILURE, text, cure, data)


VERSIONS = "versions"
_PACKAGES = ("foundationdb", "lmdb", "msgspec", "click")


def check_versions() -> list[Check]:
    """The versions that a report of a defect needs."""
    told = {"fdbqueue": __version__, "Python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):  # a distribution without metadata, such as a zipped program
            told[name] = version(name)
    return [fine(VERSIONS, ", ".join(f"{name} {number}" for name, number in told.items()), **told)]


LATENCY = "latency"


def see_latency(database: Database, keys: RootKeys) -> dict[str, float]:
    """The median seconds of limits.PROBES transactions of each kind.

    Writes: a clear of a random key without a value, limits.PROBES times.
    """
    probes = [keys.receipt(database.runtime.random_bytes(16), 0) for _ in range(limits.PROBES)]
    read_versions = [_timed(database, lambda tr: tr.get_read_version().wait()) for _ in probes]
    commits = [_timed(database, methodcaller("clear", probe)) for probe in probes]
    return {"read_version_s": median(read_versions), "commit_s": median(commits)}


def check_latency(seen: dict[str, float]) -> list[Check]:
    wanted = {
        "read_version_s": ("a read version", limits.READ_VERSION_LATE_S),
        "commit_s": ("a commit", limits.COMMIT_LATE_S),
    }
    return [_check(name, *wanted[name], seconds) for name, seconds in seen.items()]


def _check(name: str, title: str, late_s: float, seconds: float) -> Check:
    data = {name: seconds}
    if seconds <= late_s:
        return fine(LATENCY, f"{title} takes {_told_latency(seconds)}", **data)
    text = f"{title} takes {_told_latency(seconds)}, more than {_told_latency(late_s)}"
    cure = "Look at the load of the machines and disks: each call of a queue waits for one of each."
    return warning(LATENCY, text, cure, **data)


def _told_latency(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _timed(database: Database, body: Callable[[Transaction], object]) -> float:
    began = database.runtime.monotonic()
    run(database, body, timeout_s=limits.CLOSE_TIMEOUT_S)
    return database.runtime.monotonic() - began


OPEN_FILES = "open files"
_LIMIT = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)


@dataclass(frozen=True)
class OpenFiles:
    process_id: int
    count: int
    limit: int


def see_open_files(process_ids: Iterable[int]) -> list[OpenFiles]:
    """The open files of the processes that live on this host and may be read."""
    return [seen for process_id in process_ids if (seen := _see(process_id)) is not None]


def check_open_files(seen: Iterable[OpenFiles]) -> list[Check]:
    """A warning for each process that has used most of its limit."""
    listed = list(seen)
    near = [one for one in listed if one.count > limits.OPEN_FILES_SHARE_MAX * one.limit]
    if near:
        return [_near(one) for one in near]
    if not listed:
        return []
    most = max(listed, key=lambda one: one.count / one.limit)
    text = f"{most.count} of {most.limit} in process {most.process_id}, of {len(listed)} looked at"
    return [fine(OPEN_FILES, text, process_id=most.process_id, count=most.count, limit=most.limit)]


def _near(one: OpenFiles) -> Check:
    text = f"process {one.process_id} has {one.count} open files, of at most {one.limit}"
    cure = "Raise its limit (`ulimit -n`, or LimitNOFILE= of its unit), then start it again."
    return warning(OPEN_FILES, text, cure, process_id=one.process_id, count=one.count, limit=one.limit)


def _see(process_id: int) -> OpenFiles | None:
    """None for a process that has ended, or that belongs to another user."""
    try:
        count = len(os.listdir(f"/proc/{process_id}/fd"))
        with open(f"/proc/{process_id}/limits", encoding="ascii") as file:
            found = _LIMIT.search(file.read())
    except OSError:
        return None
    if found is None or found[1] == "unlimited":
        return None
    return OpenFiles(process_id, count, int(found[1]))


CLOCKS, SESSIONS = "clocks", "sessions"
CLOCK_CURE = "Synchronise the clocks of all machines (chrony, systemd-timesyncd): leases compare their times."


@dataclass(frozen=True)
class Beat:
    """The last heartbeat of a session. Times are seconds since the epoch, by the clock of its process."""

    at: float
    deadline: float
    place: str
    """Host and process ids, as far as they are stored."""
    process_ids: tuple[tuple[str, int], ...] = ()
    age_s: float | None = None
    """By the clock of the database, as far as that tells; of a session of one process."""

    @property
    def hosts(self) -> set[str]:
        return {host for host, _ in self.process_ids}

    @property
    def ttr_s(self) -> float:
        return self.deadline - self.at

    def silent_s(self, now: float) -> float:
        return now - self.at if self.age_s is None else self.age_s


@dataclass(frozen=True)
class Look:
    """The heartbeats at one look: it was done between `began` and `ended`, by the clock of this process."""

    began: float
    ended: float
    beats: Mapping[str, Beat]


def look_at_beats(database: Database, keys: RootKeys) -> Look:
    """Read the heartbeats of the first limits.CLOCKS_MAX sessions by deadline, in two round trips."""
    began = database.runtime.now()
    beats = run(database, lambda tr: _beats(tr, keys), timeout_s=limits.CLOSE_TIMEOUT_S)
    return Look(began, database.runtime.now(), beats)


def _beats(tr: Transaction, keys: RootKeys) -> dict[str, Beat]:
    under = keys.beats_due
    rows = tr.snapshot.get_range(under.start, under.stop, limit=limits.CLOCKS_MAX, streaming_mode=EXACT)
    due = [keys.beat_of(bytes(row.key)) for row in rows.to_list()]
    asked = [
        (ask_holder(tr.snapshot, keys, beat[1]), tr.snapshot.get(keys.heartbeat(beat[1])))
        for beat in due
        if beat is not None
    ]
    holders = [(reply(), age_of(tr, heartbeat.value)) for reply, heartbeat in asked]
    return {
        holder.session: Beat(
            holder.seen,
            holder.dies or 0.0,
            ", ".join(f"{one.host}, process {one.process_id}" for one in holder.processes) or holder.session,
            tuple((one.host, one.process_id) for one in holder.processes),
            age_s if holder.name is None else None,
        )
        for holder, age_s in holders
        if holder.seen is not None
    }


def check_clocks(first: Look, second: Look) -> list[Check]:
    """A result for each clock that differs, and for hosts without a session that tells the time; without any,
    the number of clocks that were compared. A dead session counts for none.
    """
    known = [(id_, beat, _difference_s(first, second, id_, beat)) for id_, beat in second.beats.items()]
    wrong = [(beat, least_s) for _, beat, least_s in known if abs(least_s) > limits.CLOCK_WARNING_S]
    compared, mute, right = list[Beat](), list[Beat](), set[str]()
    for id_, beat, least_s in known:
        if least_s or beat.age_s is not None or _is_renewed(first, id_, beat):
            compared.append(beat)
            right |= beat.hosts if (beat, least_s) not in wrong else set()
        elif beat.deadline > second.began:
            mute.append(beat)
    hosts = {place for beat in compared for place in beat.hosts}
    unknown = [beat for beat in mute if hosts.isdisjoint(beat.hosts)]
    count, silent = len(compared), len(mute)
    text = f"{count} of {counted(len(second.beats), 'session')} agree{'s' * (count == 1)} with this clock"
    text += f"; {silent} tell{'s' * (silent == 1)} no time" if silent else ""
    data = {"compared": count, "unchecked": silent, "sessions": len(second.beats)}
    found = [_skew(beat, least_s, beat.hosts <= right) for beat, least_s in wrong]
    if unknown:
        found.append(_unknown(unknown, text, data))
    return found or [fine(CLOCKS, text, **data)]


def _unknown(those: Sequence[Beat], text: str, data: Mapping[str, int]) -> Check:
    """A session beats within the watch of the cure."""
    watch_s = max(beat.ttr_s / limits.BEATS_PER_TTR for beat in those) + 1
    such = "that" if len(those) == 1 else "such as that"
    told = f"the clock of {counted(len(those), 'session')} could not be checked, {such} of {those[0].place}"
    cure = f"fdbqueue doctor --watch {min(watch_s, limits.DOCTOR_WATCH_S_MAX):.0f}"
    return warning(CLOCKS, f"{told}; {text}", cure, **data)


WORKERS = "workers"


def check_workers(found: Sequence[Member], pause: Order | None, now: float) -> list[Check]:
    """Warnings about a paused fleet, and about workers of several releases; none without a worker."""
    counts = releases(found)
    told = ", ".join(f"{count} of {release}" for release, count in counts.items())
    checks = []
    if pause is not None:
        ends = f"for {pause.pause - now:.0f} s more" if pause.pause else "until it is resumed"
        text = f"the fleet is paused {ends}: no worker takes a task"
        checks.append(warning(WORKERS, text, "fdbqueue fleet resume"))
    if len(counts) > 1:
        cure = "Upgrade the others: `fdbqueue fleet` lists them, and `fdbqueue fleet drain HOST` ends them."
        checks.append(warning(WORKERS, f"workers of several releases: {told}", cure, releases=counts))
    return checks or ([fine(WORKERS, told, releases=counts)] if counts else [])


def without_beats(look: Look) -> list[str]:
    """The first sessions that are overdue, or have missed a heartbeat."""
    patience = 2 / limits.BEATS_PER_TTR
    missed = (
        id_
        for id_, beat in look.beats.items()
        if _is_overdue(beat, look) or beat.silent_s(look.began) > patience * beat.ttr_s
    )
    return list(islice(missed, limits.EXPLAINED_HOLDERS))


def check_sessions(look: Look, held: Mapping[str, int] | None = None) -> list[Check]:
    """A warning if sessions are overdue, or have missed a heartbeat: their tasks stay taken until a process
    ends the session, or their leases end by time. `held`: the numbers of tasks of `without_beats`. A
    supervisor holds none, and its session is silent for long: it is told when it is overdue.
    """
    tasks, overdue = held or {}, [id_ for id_, beat in look.beats.items() if _is_overdue(beat, look)]
    holding = sorted((id_ for id_ in tasks if tasks[id_]), key=lambda id_: (id_ not in overdue, -tasks[id_]))
    silent = [id_ for id_ in without_beats(look) if look.beats[id_].ttr_s < limits.RUN_TTR_S]
    first = next(iter(holding or overdue or silent), None)
    if first is None:
        return [fine(SESSIONS, f"{counted(len(look.beats), 'session')} alive", live=len(look.beats))]
    beat, data = look.beats[first], {"overdue": len(overdue), "live": len(look.beats) - len(overdue)}
    told, which = "no heartbeat of a session", "leases end by their times"
    cure = "Look at that process: dead, stopped (SIGCONT wakes it), or hanging."
    if first in overdue:
        told, which = counted(len(overdue), "overdue session"), "tasks stay taken"
        cure = "Start a worker, or any program that takes: it ends the sessions of dead processes."
    if count := tasks.get(first):
        which, data["held"] = f"{counted(count, 'task')} stay{'s' * (count == 1)} taken", count
    text = f"{told}, such as that of {beat.place}, for {beat.silent_s(look.began):.0f} s: its {which}"
    return [warning(SESSIONS, text, cure, **data)]


def _is_overdue(beat: Beat, look: Look) -> bool:
    return beat.deadline < look.began - limits.OVERDUE_WARNING_S


def _difference_s(first: Look, second: Look, id_: str, beat: Beat) -> float:
    """The seconds, at the least, by which the clock of a process is ahead of ours; below 0 if behind."""
    found = [_outside(beat.at, float("-inf"), second.ended)]
    if _is_renewed(first, id_, beat):
        found += [_outside(beat.at, first.began, second.ended)]
    if beat.age_s is not None:
        unsure_s = limits.AGE_LAG_S + limits.AGE_DRIFT * beat.age_s
        began, ended = second.began - beat.age_s - unsure_s, second.ended - beat.age_s + unsure_s
        found += [_outside(beat.at, began, ended)]
    return max(found, key=abs)


def _outside(time: float, begin: float, end: float) -> float:
    """The distance of a time from a span: 0 within it, below 0 before its begin."""
    return min(0.0, time - begin) + max(0.0, time - end)


def _is_renewed(first: Look, id_: str, beat: Beat) -> bool:
    before = first.beats.get(id_)
    return before is not None and before.at != beat.at


def _skew(beat: Beat, least_s: float, is_alone: bool) -> Check:
    side = "ahead of" if least_s > 0 else "behind"
    text = f"the clock of {beat.place} is {side} this one by at least {abs(least_s):.1f} s"
    make, cure = failure if abs(least_s) > limits.CLOCK_SKEW_S else warning, CLOCK_CURE
    if is_alone and beat.process_ids:
        drain = " ".join(f"{host}:{process_id}" for host, process_id in beat.process_ids)
        cure = f"fdbqueue fleet drain {drain}  # then start it again: others of its host are right"
    return make(CLOCKS, text, cure, place=beat.place, difference_s=least_s)


@dataclass(frozen=True)
class JournalState:
    """The state of the journal and the base of one directory. A private store has neither."""

    journal_bytes: int = 0
    """The size of both files of the journal."""
    base_bytes: int = 0
    """The size of `base.mdb`."""
    waiting_bytes: int = 0
    """Of records that the base does not have yet, at most."""
    generation_bytes: int = 0
    checkpoint_waits: bool = False
    """True if a full generation is not in the base yet."""
    missing: tuple[str, ...] = ()
    """Files that are not there, or that have lost the newest commit."""


NO_JOURNAL = JournalState()


def see_journal(store: Store, newest: Place) -> JournalState:
    """Read the state of an open store whose newest commit is at `newest`. Raises: OSError."""
    names = set(os.listdir(store.directory.fd))
    missing = tuple(name for name in (durability.FILE, *FILES) if name not in names)
    if missing:  # a look must not make them
        return JournalState(missing=missing)
    sizes = [store.directory.size_bytes(name) for name in FILES]
    with closing(store.new_journal()) as journal:
        found, generation_bytes = journal.generations(), journal.generation_bytes
    full = [number for number in found if number < newest.generation]
    is_lost = newest.end > 0 and newest.generation not in found
    return JournalState(
        sum(sizes),
        store.directory.size_bytes(durability.FILE),
        newest.end + sum(sizes[number % len(FILES)] for number in full),
        generation_bytes,
        bool(full),
        (FILES[newest.generation % len(FILES)],) if is_lost else (),
    )


DIRECTORY = "directory"
_BEFORE_A_RESTART = """Before this machine restarts: stop all processes that use the directory, remove \
base.mdb if it is there, then start them."""
_BASE_ROOM = 4  # generations: the engine keeps room for them in the base


@dataclass(frozen=True)
class DirectoryState:
    """The state of one directory. Bytes are of the file `data.mdb`, and of its disk."""

    path: str
    format: str
    file_bytes: int
    free_in_file_bytes: int
    disk_free_bytes: int
    disk_bytes: int
    has_reserve: bool
    versions_behind: int
    """Commits since the oldest version that some process still reads."""
    replaced: str = ""
    """The error if files of the directory were removed or replaced; else empty."""
    journal: JournalState = NO_JOURNAL
    leader: LockHolder | None = None
    """The process that has been committing for limits.LEADER_STANDS_S, if there is one."""


def see_directory(store: Store) -> DirectoryState:
    """Read the state of an open store. Processes that have died are no readers any more."""
    store.forget_dead_readers()
    disk = os.fstatvfs(store.directory.fd)
    txn = store.begin()
    try:
        format_, newest, place = txn.get(layout.FORMAT_KEY), txn.id(), layout.last_place(txn)
    finally:
        txn.abort()
    replaced = _replaced(store)
    return DirectoryState(
        store.path,
        format_.decode(),
        (store.env.info()["last_pgno"] + 1) * store.env.stat()["psize"],
        store.free_bytes(),
        disk.f_bavail * disk.f_frsize,
        disk.f_blocks * disk.f_frsize,
        store.reserve is not None and store.reserve.is_whole,
        newest - store.oldest_reader(newest),
        replaced,
        NO_JOURNAL if store.private or replaced else see_journal(store, place),
        store.committer.standing_leader(limits.LEADER_STANDS_S),
    )


def check_directory(state: DirectoryState) -> list[Check]:
    """Files in place, commits that go on, room for them, a base that keeps up, and no reader of old pages."""
    found = [*_in_place(state), *_leader(state), *_room_of_disk(state), *_journal(state), *_reader(state)]
    free = _told_size(state.disk_free_bytes)
    files = f"{_told_size(state.file_bytes)} in use, {_told_size(state.journal.base_bytes)} of base, "
    files += f"{_told_size(state.journal.journal_bytes)} of journal"
    text = f"format {state.format}, {files}, {free} free on its disk"
    return found or [fine(DIRECTORY, text, **asdict(state))]


def _in_place(state: DirectoryState) -> Iterator[Check]:
    if state.replaced:
        cure = "Stop all processes that use the directory, then start them."
        yield failure(DIRECTORY, state.replaced, cure)


def _leader(state: DirectoryState) -> Iterator[Check]:
    leader = state.leader
    if leader is not None:
        make = failure if leader.is_stopped else warning
        yield make(DIRECTORY, f"all commits wait for {leader}", leader.cure, **asdict(leader))


def _room_of_disk(state: DirectoryState) -> Iterator[Check]:
    if state.path == PRIVATE:
        return
    room = state.disk_free_bytes + state.free_in_file_bytes
    data = {"disk_free_bytes": state.disk_free_bytes, "free_in_file_bytes": state.free_in_file_bytes}
    cure = "Consume tasks, or make room on the disk."
    if not state.has_reserve:
        text = f"the reserve for a full disk is not whole; {_told_size(state.disk_free_bytes)} are free"
        yield failure(DIRECTORY, text, cure, **data)
    elif room < limits.DISK_SHARE_MIN * state.disk_bytes:
        text = f"{_told_size(room)} are left, of {_told_size(state.disk_bytes)}"
        yield warning(DIRECTORY, text, cure, **data)


def _journal(state: DirectoryState) -> Iterator[Check]:
    journal = state.journal
    data = asdict(journal)
    waiting = _told_size(journal.waiting_bytes)
    if journal.missing:
        text = f"missing or damaged: {', '.join(journal.missing)}. A power cut would lose commits"
        yield failure(DIRECTORY, text, _BEFORE_A_RESTART, **data)
    elif journal.checkpoint_waits and state.disk_free_bytes < _BASE_ROOM * journal.generation_bytes:
        free = _told_size(state.disk_free_bytes)
        text = f"the base has no room for the journal ({waiting}): {free} are free"
        yield warning(DIRECTORY, text, "Make room on the disk.", **data)
    elif journal.waiting_bytes > limits.JOURNAL_BYTES_WARNING:
        text = f"{waiting} of the journal are not in the base yet: checkpoints fail, or are late"
        cure = "Look for a broken or slow disk, and for a stopped process that makes the checkpoint."
        yield warning(DIRECTORY, text, cure, **data)


def _reader(state: DirectoryState) -> Iterator[Check]:
    if state.versions_behind > limits.VERSIONS_BEHIND_WARNING:
        text = f"a process reads a version that is {state.versions_behind:,} commits old: the file grows"
        cure = "Find the process that stands still: a transaction should end within 5 s."
        yield warning(DIRECTORY, text, cure, versions_behind=state.versions_behind)


def _replaced(store: Store) -> str:
    try:
        if not store.private:
            store.require_in_place()
    except StorageReplaced as error:
        return str(error)
    return ""


def _told_size(size_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"


CLUSTER = "cluster"
CLIENT_LIBRARY, KNOBS, CLOCK = "client library", "knobs", "clocks"
BATCH = "batch priority"
_STATUS_KEY = b"\xff\xff/status/json"
_LOOK = "Look at `fdbcli --exec 'status details'`."


def see_status(database: Database) -> dict[str, Any]:
    """The status of the cluster, in one round trip to its coordinators."""
    found = run(database, lambda tr: tr.get(_STATUS_KEY).value, timeout_s=limits.STATUS_TIMEOUT_S)
    status: dict[str, Any] = json.loads(found or b"{}")
    return status


def see_batch(database: Database) -> float | None:
    """Seconds to a read version at batch priority; None if none came within limits.BATCH_PATIENCE_S."""
    runtime, before = database.runtime, database.counters.fallbacks
    probe = database.lent()
    probe.manner = manner_of(None, "look")  # whatever priority its user has given the database
    began = runtime.monotonic()
    run(probe, lambda tr: tr.get_read_version().wait(), timeout_s=limits.LOOK_TIMEOUT_S)
    return runtime.monotonic() - began if database.counters.fallbacks == before else None


def check_batch(seconds: float | None) -> list[Check]:
    """A warning while the cluster starves batch priority."""
    if seconds is not None:
        text = f"a read version at batch priority takes {seconds * 1000:.1f} ms"
        return [fine(BATCH, text, seconds=seconds)]
    text = f"batch priority starves: no read version in {limits.BATCH_PATIENCE_S:g} s; background work waits"
    return [warning(BATCH, text, f"Lower the load of the cluster. {_LOOK}")]


def check_cluster(status: dict[str, Any]) -> list[Check]:
    """Health, regions, performance, disk room and messages."""
    looks = (_health, _regions, _limited, _conflicts, _room_of_servers, _messages)
    found = [check for look in looks for check in look(status)]
    return found or [fine(CLUSTER, "available and healthy, limited by nothing but its load")]


def check_client_library(status: dict[str, Any]) -> list[Check]:
    """Versions of the client library, the API and the servers: the servers agree, and none is newer."""
    library, api = binding.library_release(), binding.API_VERSION
    servers = sorted({str(one["version"]) for one in _processes(status) if "version" in one})
    data = {"library": library, "api_version": api, "servers": servers}
    text = f"libfdb_c {library}, API version {api}, servers {', '.join(servers) or 'unknown'}"
    if len(servers) > 1:
        cure = "Finish the upgrade: all servers of a cluster need one release."
        return [warning(CLIENT_LIBRARY, text, cure, **data)]
    return [fine(CLIENT_LIBRARY, text, **data)]


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
    return [warning(CLOCK, text, CLOCK_CURE, difference_s=controller - now)]


def _health(status: dict[str, Any]) -> Iterator[Check]:
    client, data = status.get("client", {}), status.get("cluster", {}).get("data", {}).get("state", {})
    if not client.get("coordinators", {}).get("quorum_reachable", True):
        cure = "Start the machines of the coordinators that the cluster file names."
        yield failure(CLUSTER, "too few coordinators can be reached", cure)
    if not client.get("database_status", {}).get("available", True):
        recovery = status.get("cluster", {}).get("recovery_state", {}).get("name", "unknown")
        text = f"the database is not available (recovery: {recovery})"
        yield failure(CLUSTER, text, _LOOK, recovery=recovery)
    if data.get("healthy") is False:
        text = f"the data is not healthy: {data.get('description') or data.get('name')}"
        yield warning(CLUSTER, text, _LOOK, state=data.get("name"))


def _regions(status: dict[str, Any]) -> Iterator[Check]:
    cluster = status.get("cluster", {})
    lag_s = cluster.get("datacenter_lag", {}).get("seconds", 0.0)
    if lag_s > limits.REGION_LAG_S:
        text = f"the remote region is {lag_s:.0f} s behind: a takeover has to wait for the rest, or loses it"
        yield warning(CLUSTER, text, "Look at the network between the regions, and log_routers.", lag_s=lag_s)
    # The recovery after a takeover ends when the other region has logs again; `full_replication` stays true.
    recovery = cluster.get("recovery_state", {}).get("name")
    if cluster.get("configuration", {}).get("usable_regions", 1) > 1 and recovery == "accepting_commits":
        cure = "Bring it back, or drop it from the configuration before the disks of the logs fill."
        yield warning(CLUSTER, "one region has no logs: all commits are kept for it", cure, recovery=recovery)


def _limited(status: dict[str, Any]) -> Iterator[Check]:
    qos = status.get("cluster", {}).get("qos", {})
    for name, which in (("performance_limited_by", ""), ("batch_performance_limited_by", "batch ")):
        limited = qos.get(name, {})
        if limited.get("name", "workload") != "workload":
            text = f"{which}transactions are held back by {limited['name']}: {limited.get('description', '')}"
            yield warning(CLUSTER, text.rstrip(": "), _LOOK, limited_by=limited["name"])
            break


def _conflicts(status: dict[str, Any]) -> Iterator[Check]:
    rates = status.get("cluster", {}).get("workload", {}).get("transactions", {})
    committed, conflicted = (rates.get(name, {}).get("hz", 0.0) for name in ("committed", "conflicted"))
    if conflicted > max(limits.CONFLICTS_WARNING_PER_S, committed):
        text = f"{conflicted:.0f} commits a second conflict, and {committed:.0f} succeed"
        cure = "Find the programs that conflict by `Database.counters`, and the hot queues by `fdbqueue top`."
        yield warning(CLUSTER, text, cure, conflicted_per_s=conflicted, committed_per_s=committed)


def _room_of_servers(status: dict[str, Any]) -> Iterator[Check]:
    disks = [one.get("disk", {}) for one in _processes(status)]
    for disk in disks:
        free, total = disk.get("free_bytes"), disk.get("total_bytes")
        if free is not None and total and free < limits.DISK_SHARE_MIN * total:
            text = f"a server's disk has {free / total:.0%} of its room left"
            yield warning(CLUSTER, text, "Make room there, or add storage servers.", free_bytes=free)
            return


def _messages(status: dict[str, Any]) -> Iterator[Check]:
    own = status.get("cluster", {}).get("messages", []) + status.get("client", {}).get("messages", [])
    for message in own + [message for one in _processes(status) for message in one.get("messages", [])]:
        text = message.get("description") or message.get("name") or "unknown"
        yield warning(CLUSTER, f"the cluster says: {text}", _LOOK, message=message.get("name"))


def _processes(status: dict[str, Any]) -> list[dict[str, Any]]:
    return list(status.get("cluster", {}).get("processes", {}).values())


def _knobs_in(command_line: str) -> list[str]:
    words = command_line.split()
    return [word.removeprefix("--knob_") for word in words if word.startswith("--knob_")]
