"""A disk without room: an error that loses nothing, and that tells the cause.

A file size limit plays the full disk.
"""

import errno
import os
import subprocess
import sys
import textwrap

import lmdb
import pytest

import fdbqueue
from fdbqueue.core.errors import MemoryFull, StorageFull, StorageInUse
from fdbqueue.embedded import directory, durability
from tests.support import run_program

FILL = """
    import resource, signal, sys
    import fdbqueue

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
    db = fdbqueue.open("embedded:" + sys.argv[1])
    written = 0
    try:
        while True:
            db[b"k%06d" % written] = b"x" * 50_000
            written += 1
    except fdbqueue.FdbQueueError as error:
        print(type(error).__name__, written, len(db.get_range(b"k", b"l")))
    tr = db.create_transaction()
    tr[b"k"] = b"x" * 50_000
    tr.set_versionstamped_value(b"stamp", bytes(14))
    stamp, watch = tr.get_versionstamp(), tr.watch(b"w")
    commit = tr.commit()
    print(type(commit.exception()).__name__, stamp.is_ready(), watch.is_ready())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    db[b"later"] = b"y" * 50_000
    print(len(db.get_range(b"k", b"l")), len(db[b"later"]))
"""


def test_a_full_disk_is_an_error_that_loses_nothing(tmp_path):
    """A transaction without room is refused whole; the others stay, and with room writes succeed again."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FILL), str(tmp_path / "db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    refused, told, afterwards = done.stdout.splitlines()
    name, written, readable = refused.split()
    assert name == "StorageFull"
    assert int(written) == int(readable) > 0
    assert told == "StorageFull True True"
    assert afterwards == f"{written} 50000"


LIMITED = """
    import resource, sys
    import fdbqueue

    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 200_000_000, -1))
    with fdbqueue.open("embedded:data") as db:
        written = 0
        try:
            while written < 2_000:
                db[b"k%04d" % written] = b"x" * 99_000
                written += 1
        except fdbqueue.FdbQueueError as error:
            print(type(error).__name__, len(db[b"k0000"]), len(db[b"k%04d" % (written - 1)]))
            print(error)
"""


def test_a_lack_of_address_space_is_not_blamed_on_the_disk(tmp_path):
    """The map of the directory cannot grow: the cure is another limit."""
    read, told = run_program(tmp_path, LIMITED).splitlines()
    assert read == "MemoryFull 99000 99000"
    assert "ulimit -v, LimitAS=" in told
    assert "No room on the disk" not in told


CAUSES = {
    errno.ENOSPC: ("No room on the disk of {path}", "free room on the disk"),
    errno.EDQUOT: ("No room in the disk quota", "raise the quota"),
    errno.EFBIG: ("the largest size that this process may write", "LimitFSIZE="),
    errno.ENOMEM: ("no more memory or address space for {path}", "LimitAS="),
    errno.EIO: ("Input/output error", "the disk has failed"),
    errno.EROFS: ("Read-only file system", "mount the file system for writing"),
    errno.EACCES: ("Permission denied", "run as its owner"),
    errno.EMFILE: ("Too many open files", "LimitNOFILE="),
    errno.ENOLCK: ("No locks available", "local file system"),
}


def lmdb_error(code: int) -> lmdb.Error:
    error = lmdb.Error(f"mdb_put: {os.strerror(code)}")
    error.code, error.reason = code, os.strerror(code)
    return error


@pytest.fixture
def db(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path / 'data'}") as database:
        yield database


@pytest.mark.parametrize("code", CAUSES)
@pytest.mark.parametrize("made", [lambda code: OSError(code, os.strerror(code)), lmdb_error])
def test_each_error_of_the_system_tells_its_cause_and_cure(db, code, made):
    """Of a commit and of an opening, from a file and from LMDB."""
    store = db.engine.lmdb_store
    failed, refused = store.storage_error(made(code)), directory.refusal(store.path, made(code))
    assert isinstance(failed, StorageFull) == (code in {*directory.FULL, errno.ENOMEM})
    assert isinstance(failed, MemoryFull) == (code == errno.ENOMEM)
    assert isinstance(refused, StorageFull if code in directory.FULL else StorageInUse)
    cause, cure = CAUSES[code]
    assert all(part in str(failed) for part in (cause.format(path=store.path), cure))
    assert cure in str(refused)


@pytest.mark.parametrize(("code", "words"), [(errno.EIO, "The base of"), (errno.ENOMEM, "no more memory")])
def test_a_commit_that_waits_for_the_base_tells_why_it_fails(db, monkeypatch, code, words):
    """The journal is full, and a checkpoint cannot empty it."""

    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(durability.Checkpoints, "_make", fail)
    db.engine.lmdb_store.committer._batches._durability.make_room()
    tr = db.create_transaction()
    tr[b"key"] = b"value" * 100
    with pytest.raises(StorageFull, match=words):
        tr.commit().wait()
