"""Programs that tests/engine/test_processes.py runs in processes of their own, one function each.

    python programs.py NAME PATH [ARGUMENT ...]

They speak line by line on standard output; the tests wait for the lines, never for time.
"""

import os
import sys
import threading

import fdbqueue.embedded as fdb

# Keys that one transaction writes together: short ones, one beyond LMDB's key size, and a large value.
TOGETHER = [b"a", b"b", b"c" * 600, b"d" * 9_000, b"z"]
LARGE = b"v" * 50_000


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write: a line is never torn


def increment(path: str, key: str, count: str) -> None:
    """Add one, `count` times, by reading and writing."""
    db = fdb.open(path)

    @fdb.transactional
    def one_more(tr: fdb.Transaction) -> None:
        tr[key.encode()] = b"%d" % (int(tr[key.encode()].value or b"0") + 1)

    say("ready")
    sys.stdin.readline()
    for _ in range(int(count)):
        one_more(db)
    say("done")


def watch(path: str, key: str) -> None:
    """Wait for a change, again and again, and say each value seen."""
    db = fdb.open(path)
    while True:
        value, changed = db.get_and_watch(key.encode())
        say("saw", value.value)
        changed.wait()


def write_together(path: str, name: str) -> None:
    """Write one number to several keys, and count in a shared one, for ever; say each number committed."""
    db = fdb.open(path)
    number = 0
    while True:
        number += 1
        tr = db.create_transaction()
        for key in TOGETHER:
            tr[name.encode() + key] = b"%d" % number
        tr[name.encode() + b"large"] = b"%d" % number + LARGE
        tr.add(b"total", (1).to_bytes(8, "little"))
        tr.commit().wait()
        say(number)


def write_together_in_threads(path: str, name: str) -> None:
    """The same from four threads, so that commits go in groups."""
    threads = [threading.Thread(target=write_together, args=(path, f"{name}{i}")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hold_snapshot(path: str) -> None:
    """Read, and stay: a reader that will be killed."""
    tr = fdb.open(path).create_transaction()
    tr[b"a"].wait()
    say("reading")
    sys.stdin.readline()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
