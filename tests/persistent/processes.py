"""What processes do that the tests kill: `python -m tests.persistent.processes WHAT URL NAME [ARGUMENT]`."""

import os
import sys
import threading
import time

import fdbqueue
from fdbqueue import PersistentQueue, Proxy
from fdbqueue.core import limits

TTR_S = 1.5


def say(text: object) -> None:
    print(text, flush=True)


def fetch_ten_ack_six(db: fdbqueue.Database, name: str, owner: str | None) -> None:
    q = PersistentQueue(db, name, owner=owner, ttr=TTR_S)
    proxy = q.connect()
    items = [proxy.get() for _ in range(5)] + [q.get() for _ in range(5)]
    for item in items[4:5]:
        proxy.ack(item)
    for item in items[5:]:
        q.ack(item)
    say("fetched")
    time.sleep(100)


def hold_one(db: fdbqueue.Database, name: str, ttr_s: str | None) -> None:
    q = PersistentQueue(db, name, ttr=float(ttr_s or TTR_S))
    say(q.get())
    time.sleep(100)


def die_in_a_transaction(db: fdbqueue.Database, name: str, owner: str | None) -> None:
    q = PersistentQueue(db, name, owner=owner, ttr=TTR_S)
    with q.transaction():
        item = q.get()
        q.put("result")
        q.ack(item)
        say("inside")
        time.sleep(100)


def wait_for_an_item(db: fdbqueue.Database, name: str, owner: str | None) -> None:
    q = PersistentQueue(db, name, owner=owner, ttr=TTR_S)
    limits.LOOK_EVERY_S = limits.REQUEST_RENEW_S = 600.0  # a put wakes it, not a look of its own
    say("waiting")
    say(q.get())
    time.sleep(100)  # its end would return its un-acked items, and another process would get them


def drain(db: fdbqueue.Database, name: str, _: str | None) -> None:
    """As the documentation of queue.Queue does it, without an owner."""
    q = PersistentQueue(db, name, ttr=TTR_S)
    while not q.empty():
        say(q.get_nowait())


def end_without_closing(db: fdbqueue.Database, name: str, _: str | None) -> None:
    """End with a proxy in a daemon thread, and one that a cycle of references keeps alive."""
    q = PersistentQueue(db, name)
    q.get()
    has_one = threading.Event()

    def work() -> None:
        proxy = q.connect()
        proxy.get()
        has_one.set()
        time.sleep(100)

    threading.Thread(target=work, daemon=True).start()
    has_one.wait()
    kept: list[object] = [q.connect()]
    kept.append(kept)
    assert isinstance(kept[0], Proxy)
    kept[0].get()
    say("ends")


def fork_with_an_item(db: fdbqueue.Database, name: str, _: str | None) -> None:
    q = PersistentQueue(db, name)
    item = q.get()
    with q.transaction():
        q.put("by the transaction, once")
        child = os.fork()
    if child == 0:
        in_the_child(q, item)  # and then it ends as any program does
        return
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    say(q.qsize())
    q.ack(item)
    say("acked by the parent")


def in_the_child(q: PersistentQueue, item: object) -> None:
    assert q.unacked == []
    try:
        q.ack(item)
    except KeyError:
        say("not the child's to ack")
    say(q.get())
    q.task_done()


def advance(db: fdbqueue.Database, name: str, goal: str | None) -> None:
    """Replace each [n, stage] by [n, stage + 1]; items at the last stage are held."""
    q = PersistentQueue(db, name, ttr=TTR_S)
    while True:
        item = q.get()
        if item[1] < int(goal or 0):
            advanced(q, item)


def advanced(q: PersistentQueue, item: list[int]) -> None:
    n, stage = item
    with q.transaction():
        q.put([n, stage + 1])
        q.ack(item)


def main() -> None:
    what, url, name, *rest = sys.argv[1:]
    db = fdbqueue.open(url)
    globals()[what](db, name, rest[0] if rest else None)


if __name__ == "__main__":
    main()
