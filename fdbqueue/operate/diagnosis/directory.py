"""The directory of the embedded engine: its format, its room, its journal, and readers of old versions."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, dataclass

from fdbqueue.core import limits
from fdbqueue.core.errors import StorageReplaced
from fdbqueue.embedded import durability, layout
from fdbqueue.embedded.directory import LockHolder
from fdbqueue.embedded.environment import PRIVATE
from fdbqueue.embedded.journal import FILES, Place
from fdbqueue.embedded.store import Store
from fdbqueue.operate.diagnosis.check import Check, failure, fine, warning


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


CHECK = "directory"
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
    found = [*_in_place(state), *_leader(state), *_room(state), *_journal(state), *_reader(state)]
    free = _told(state.disk_free_bytes)
    files = f"{_told(state.file_bytes)} in use, {_told(state.journal.base_bytes)} of base, "
    files += f"{_told(state.journal.journal_bytes)} of journal"
    text = f"format {state.format}, {files}, {free} free on its disk"
    return found or [fine(CHECK, text, **asdict(state))]


def _in_place(state: DirectoryState) -> Iterator[Check]:
    if state.replaced:
        yield failure(CHECK, state.replaced, "Stop all processes that use the directory, then start them.")


def _leader(state: DirectoryState) -> Iterator[Check]:
    leader = state.leader
    if leader is not None:
        make = failure if leader.is_stopped else warning
        yield make(CHECK, f"all commits wait for {leader}", leader.cure, **asdict(leader))


def _room(state: DirectoryState) -> Iterator[Check]:
    if state.path == PRIVATE:
        return
    room = state.disk_free_bytes + state.free_in_file_bytes
    data = {"disk_free_bytes": state.disk_free_bytes, "free_in_file_bytes": state.free_in_file_bytes}
    cure = "Consume tasks, or make room on the disk."
    if not state.has_reserve:
        text = f"the reserve for a full disk is not whole; {_told(state.disk_free_bytes)} are free"
        yield failure(CHECK, text, cure, **data)
    elif room < limits.DISK_SHARE_MIN * state.disk_bytes:
        yield warning(CHECK, f"{_told(room)} are left, of {_told(state.disk_bytes)}", cure, **data)


def _journal(state: DirectoryState) -> Iterator[Check]:
    journal = state.journal
    data = asdict(journal)
    waiting = _told(journal.waiting_bytes)
    if journal.missing:
        text = f"missing or damaged: {', '.join(journal.missing)}. A power cut would lose commits"
        yield failure(CHECK, text, _BEFORE_A_RESTART, **data)
    elif journal.checkpoint_waits and state.disk_free_bytes < _BASE_ROOM * journal.generation_bytes:
        text = f"the base has no room for the journal ({waiting}): {_told(state.disk_free_bytes)} are free"
        yield warning(CHECK, text, "Make room on the disk.", **data)
    elif journal.waiting_bytes > limits.JOURNAL_BYTES_WARNING:
        text = f"{waiting} of the journal are not in the base yet: checkpoints fail, or are late"
        cure = "Look for a broken or slow disk, and for a stopped process that makes the checkpoint."
        yield warning(CHECK, text, cure, **data)


def _reader(state: DirectoryState) -> Iterator[Check]:
    if state.versions_behind > limits.VERSIONS_BEHIND_WARNING:
        text = f"a process reads a version that is {state.versions_behind:,} commits old: the file grows"
        cure = "Find the process that stands still: a transaction should end within 5 s."
        yield warning(CHECK, text, cure, versions_behind=state.versions_behind)


def _replaced(store: Store) -> str:
    if store.private:
        return ""
    try:
        store.require_in_place()
    except StorageReplaced as error:
        return str(error)
    return ""


def _told(size_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.3g} TB"
