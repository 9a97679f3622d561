"""Programs that tests/engine/test_processes.py runs in processes of their own, one function each.

    python programs.py NAME PATH [ARGUMENT ...]

They write lines to standard output. The tests wait for lines, never for a time.
"""

import os
import signal
import sys
import threading

import fdbqueue.embedded as fdb
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.embedded.processes import Pool, Users

# Keys that one transaction writes together: short ones, one beyond LMDB's key size, and a large value.
TOGETHER = [b"a", b"b", b"c" * 600, b"d" * 9_000, b"z"]
LARGE = b"v" * 50_000


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())  # one write, so that a line is never split


def increment(path: str, key: str, count: str) -> None:
    """Add one, `count` times, by a read and a write."""
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
    """Wait for a change, again and again, and print each value."""
    db = fdb.open(path)
    while True:
        value, changed = db.get_and_watch(key.encode())
        say("saw", value.value)
        changed.wait()


def write_together(path: str, name: str) -> None:
    """Write one number to several keys and count in a shared key, for ever; print each committed number."""
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
    """Write as `write_together` does from four threads, so that commits are grouped."""
    threads = [threading.Thread(target=write_together, args=(path, f"{name}{i}")) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hold_snapshot(path: str) -> None:
    """Read, and wait to be killed."""
    tr = fdb.open(path).create_transaction()
    tr[b"a"].wait()
    say("reading")
    sys.stdin.readline()


def try_to_open(path: str) -> None:
    """Print the error of opening, or the value of a key."""
    try:
        db = fdb.open(path)
    except FdbQueueError as error:
        say(type(error).__name__, error)
    else:
        say("opened", db[b"a"])


def tell_name(path: str) -> None:
    """Tell the name by which others know this process, and that of a forked child; wait to be killed."""
    db = fdb.open(path)
    say(db.name_of_process().hex())
    if not os.fork():
        say(db.name_of_process().hex())
        os._exit(0)
    os.wait()
    sys.stdin.readline()


# Commits that processes do for each other (test_pool.py).


def pool_of(db: fdb.Database) -> Pool:
    pool = db._store.committer._pool
    assert pool is not None
    return pool


def lead(pool: Pool) -> None:
    while not pool.try_lead():
        pool.wait()


def take_a_slot(db: fdb.Database) -> None:
    """Take a slot, so that this process asks other leaders from now on."""
    lead(pool_of(db))
    pool_of(db).take_slot()
    pool_of(db).resign()


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def lead_and_die(path: str, moment: str) -> None:
    """Lead; after a line, commit all requests, and die at `moment`."""
    note = Pool.note_committing

    def note_and_die(pool: Pool, version: int) -> None:
        note(pool, version)
        die()

    def answer_one_and_die(pool: Pool, version: int, answers: list) -> None:
        for told in answers[:1]:
            pool._results[told.slot * 64] = told.results[0]
            pool._versions[told.slot] = version
            pool._answered[told.slot] = told.number
        die()

    db = fdb.open(path)
    lead(pool_of(db))
    say("leading")
    sys.stdin.readline()
    Pool.try_lead = lambda _: True  # it does
    method, instead = {
        "looks": ("pending", die),
        "commits": ("note_committing", die),
        "has noted that it commits": ("note_committing", note_and_die),
        "answers": ("answer", die),
        "has answered one of two": ("answer", answer_one_and_die),
        "resigns": ("resign", die),
    }[moment]
    setattr(Pool, method, instead)
    db[b"leader"] = b"was here"


def lead_until_told(path: str) -> None:
    """Lead, and commit after a line."""
    db = fdb.open(path)
    lead(pool_of(db))
    say("leading")
    sys.stdin.readline()
    try_lead, Pool.try_lead = Pool.try_lead, lambda _: True  # it does
    db[b"leader"] = b"was here"
    Pool.try_lead = try_lead
    say("done")
    sys.stdin.readline()


def stop_in_a_commit(path: str) -> None:
    """Stop, as by SIGSTOP, in a commit that others wait for; then end it, and say so."""
    db = fdb.open(path)
    drop = Pool.drop  # the first step of a leader

    def stop(pool: Pool) -> None:
        say("stops")
        os.kill(os.getpid(), signal.SIGSTOP)
        drop(pool)

    Pool.drop = stop
    db[b"stopped"] = b"was here"
    say("done")
    sys.stdin.readline()


def stop_while_opening(path: str) -> None:
    """Stop before the directory is ready; then go on, and say so."""

    def stop(_: Users) -> None:
        say("stops")
        os.kill(os.getpid(), signal.SIGSTOP)

    Users._share_namespace = stop
    fdb.open(path)
    say("done")
    sys.stdin.readline()


def ask(path: str, key: str, count: str = "1") -> None:
    """Add one to `key` and to `both`, `count` times; print each version and stamp."""
    db = fdb.open(path)
    take_a_slot(db)
    say("ready")
    sys.stdin.readline()
    for _ in range(int(count)):
        tr = db.create_transaction()
        tr.add(key.encode(), (1).to_bytes(8, "little"))
        tr.add(b"both", (1).to_bytes(8, "little"))
        stamp = tr.get_versionstamp()
        try:
            tr.commit().wait()
            say(tr.get_committed_version(), stamp.value.hex())
        except fdb.FDBError as error:
            say("error", error.code)
    sys.stdin.readline()


def ask_and_be_interrupted(path: str, key: str) -> None:
    """Ask others to set `key`; print when SIGALRM has ended the call, and whether `key` is set."""

    class Interrupt(BaseException):
        pass

    def interrupt(*_: object) -> None:
        raise Interrupt

    signal.signal(signal.SIGALRM, interrupt)
    db = fdb.open(path)
    take_a_slot(db)
    say("ready")
    sys.stdin.readline()
    try:
        db[key.encode()] = b"1"
        say("committed")
    except Interrupt:
        say("interrupted", db[key.encode()])
    db[b"afterwards"] = b"1"
    say("afterwards", db[key.encode()])


def fork_while_leading(path: str) -> None:
    """Lead in a thread for ever, close the database, and leave a child behind."""
    db = fdb.open(path)
    lead_in_a_thread(db)
    db.close()
    if os.fork():
        say("leading")
    sys.stdin.readline()


def fork_while_leading_and_watching(path: str, key: str) -> None:
    """Watch a key, take a slot, lead in a thread for ever, and leave a child behind."""
    db = fdb.open(path)
    _, changed = db.get_and_watch(key.encode())
    take_a_slot(db)
    lead_in_a_thread(db)
    if not os.fork():
        say("leading")  # by the child: it has closed the descriptors of its parent by now
    sys.stdin.readline()
    del changed


def count_journals_of_a_child(path: str) -> None:
    """Lead in a thread for ever; print the number of open files of journals, and that of a child."""
    db = fdb.open(path)
    db[b"before"] = b"value"
    lead_in_a_thread(db)
    say(journals(path))
    if not os.fork():
        say(journals(path))
    sys.stdin.readline()


def journals(path: str) -> int:
    """Count the open files of the journals of one directory: tests before may have left others open."""
    names = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum(name.startswith(f"{os.path.realpath(path)}/journal.") for name in names)


def lead_in_a_thread(db: fdb.Database) -> None:
    leading = threading.Event()

    def lead_for_ever(_: Pool) -> None:
        leading.set()
        threading.Event().wait()

    Pool.drop = lead_for_ever  # the first step of a leader
    threading.Thread(target=db.set, args=(b"leader", b"was here"), daemon=True).start()
    leading.wait()


def watch_and_fork(path: str, key: str) -> None:
    """Watch a key, and leave a child behind."""
    value, changed = fdb.open(path).get_and_watch(key.encode())
    if not os.fork():
        say("saw", value.value)  # the child, which has closed the parent's files already
    sys.stdin.readline()
    del changed


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
