"""A disk without room: an error that loses nothing. A file size limit plays the full disk."""

import subprocess
import sys
import textwrap

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
