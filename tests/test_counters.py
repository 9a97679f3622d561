"""Database.counters counts the conflicts and retries of the calls of this process."""

import threading

import fdbqueue
from fdbqueue.core.observing import Counters
from tests.support import COMMIT_UNKNOWN, NOT_COMMITTED, PATIENCE_S


def test_a_lost_race_is_a_conflict_and_a_retry(db, k):
    """In the user's own transactions as well."""
    attempts = []

    @fdbqueue.transactional
    def body(tr):
        tr.get(k("a")).wait()
        if not attempts:
            k.write(db, "a")
        attempts.append(1)
        tr[k("b")] = b""

    body(db)
    assert len(attempts) == 2
    assert (db.counters.conflicts, db.counters.retries, db.counters.unknown) == (1, 1, 0)


def test_waiting_in_a_line_counts_the_request_and_the_wake_up(db, space):
    """A dequeue that finds something at once takes no place."""
    queue = fdbqueue.Queue(space["queue"], root=space["root"])
    queue.enqueue(db, "at once")
    queue.dequeue(db, timeout=PATIENCE_S)
    assert (db.counters.requests, db.counters.wake_ups) == (0, 0)
    waiting = threading.Thread(target=lambda: queue.dequeue(db, timeout=PATIENCE_S))
    waiting.start()
    while not db.counters.requests:
        waiting.join(0.01)
    queue.enqueue(db, "later")
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert db.counters.requests == 1


def test_a_call_given_a_database_counts_its_commit(db, space):
    queue = fdbqueue.Queue(space["queue"], root=space["root"])
    queue.enqueue(db, "x")
    commits = db.counters.commits
    queue.enqueue(db, "y")
    assert db.counters.commits == commits + 1


def test_an_unknown_result_is_a_retry_and_no_conflict():
    """Whichever it turns out to be."""
    counters = Counters()
    counters.note_error(COMMIT_UNKNOWN)
    counters.note_error(NOT_COMMITTED)
    assert counters == Counters(conflicts=1, retries=2, unknown=1)
