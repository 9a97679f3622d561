"""Proxies without references, on a clock that stands still: the next call gives their items back."""

from fdbqueue import Database, PersistentQueue
from tests.persistent.conftest import Still
from tests.persistent.support import filled


def test_a_get_has_the_item_of_a_collected_proxy_first(still: Still) -> None:
    q = filled(still.opened(), "ab")
    assert q.get_nowait() == "a"
    q.put("c")
    proxy = q.connect()
    assert proxy.get_nowait() == "b"
    del proxy
    assert q.get_nowait() == "b"


def test_a_size_counts_the_item_of_a_collected_proxy(still: Still) -> None:
    q = filled(still.opened(), "ab")
    proxy = q.connect()
    assert proxy.get_nowait() == "a"
    del proxy
    assert q.qsize() == 2


def test_a_size_counts_the_item_of_an_overdue_session(still: Still) -> None:
    """Another process has died, and no sweep has seen it."""
    q = filled(still.opened(ttr=10), "a")
    assert q.get_nowait() == "a"
    still.clock.advance(11)
    with Database(still.db.engine, runtime=still.clock) as db:
        assert PersistentQueue(db, "q", root=still.root).qsize() == 1
