"""Owners: a client that comes back gets its items at once (section 2.1: identity beyond the process)."""

import gc
from typing import Any

import pytest

from fdbqueue import Session
from fdbqueue.core import limits
from fdbqueue.core.errors import NotUnacked, OwnerReplaced
from fdbqueue.queues.unacked import Owner
from tests.persistent.conftest import Opened, Still
from tests.persistent.support import drained, fetched, filled
from tests.support import FailsOnce


def test_items_of_other_owners_stay_with_them(opened: Opened) -> None:
    nameless, other, mine = filled(opened(), "abc"), opened(owner="other"), opened(owner="me")
    elsewhere = filled(opened("elsewhere", owner="me"), "d")
    assert [nameless.get(), other.get(), mine.get(), elsewhere.get()] == ["a", "b", "c", "d"]
    assert opened(owner="me").get() == "c"
    nameless.ack("a")
    other.ack("b")
    elsewhere.ack("d")


def test_a_client_that_lost_its_name_acks_and_gets_nothing(opened: Opened) -> None:
    old = filled(opened(owner="me"), "ab")
    proxy = old.connect()
    assert proxy.get() == "a"
    new = opened(owner="me")
    with pytest.raises(NotUnacked):
        proxy.ack("a")
    for call in (proxy.get, old.get, old.connect):
        with pytest.raises(OwnerReplaced):
            call()
    old.put("c")  # its puts are accepted as any others
    assert drained(new) == ["a", "b", "c"]


def test_reopening_is_bounded_however_many_proxies_died(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEAD_SESSIONS_MAX", 2)
    q = filled(opened(owner="me"), range(7))
    proxies = [q.connect() for _ in range(7)]
    assert [proxy.get() for proxy in proxies] == list(range(7))
    assert drained(opened(owner="me")) == list(range(7))


@pytest.fixture
def quick_collections() -> None:
    """A collection visits new objects only, not those of the tests before it."""
    gc.freeze()


@pytest.mark.usefixtures("quick_collections")
def test_nothing_is_kept_of_proxies_that_ended_without_a_word(still: Still) -> None:
    q = filled(still.opened(owner="me"), range(20))
    for number in range(20):
        proxy = q.connect()
        assert proxy.get_nowait() == number
        proxy.ack(number)
        del proxy
        gc.collect()
        still.tick()
    members = [key for key, _ in still.stored() if key.startswith(q._client.owner._under)]
    assert len(members) <= 3  # the claim, an owner that has just ended, one that has not begun


def test_items_of_a_half_ended_proxy_return_to_the_front_first(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = filled(still.opened(owner="me"), "ab")
    proxy = q.connect()
    assert proxy.get_nowait() == "a"
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.core.sessions.ending._finish", lambda *_, **__: None)
        del proxy
        gc.collect()
        still.tick()
    still.clock.advance(0.001)  # at the same moment, the half-done end would pass for our own attempt
    assert q.connect().get_nowait() == "a"


def test_a_half_finished_end_is_finished_at_once(still: Still, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that noticed the death died, too, before it had returned an item."""
    q = filled(still.opened(owner="me", ttr=10), "abc")
    fetched(q, 2)
    still.clock.advance(10)
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.core.sessions.ending._finish", lambda *_: None)
        still.end_the_dead()
    still.clock.advance(0.001)  # at the same moment, the half-done end would pass for our own attempt
    assert still.opened(owner="me").qsize() == 3


def test_nothing_is_left_behind_by_proxies_that_end(still: Still) -> None:
    """Closed proxies leave no keys, and dead ones leave none when the name is opened again."""
    with still.opened(owner="me") as q:
        before = len(still.stored())
        filled(q, "a")
        with q.connect() as proxy:
            proxy.ack(proxy.get())
    left = {key for key, _ in still.stored()}
    for _ in range(3):
        q = filled(still.opened(owner="me"), "a")
        for _ in range(3):
            q.connect()
        del q
        gc.collect()
        still.tick()
    with still.opened(owner="me") as q:
        assert drained(q) == ["a", "a", "a"]
    assert {key for key, _ in still.stored()} == left
    assert before <= len(left)


def test_an_opening_that_fails_leaves_its_work_to_the_next_one(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has claimed the name, and has ended no session of the client before it."""
    before = filled(still.opened(owner="me"), "ab")
    fetched(before, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Owner, "_end", FailsOnce(OSError("broken")))
        with pytest.raises(OSError, match="broken"):
            still.opened(owner="me")
    assert drained(still.opened(owner="me")) == ["a", "b"]
    assert before.empty()


def test_a_close_that_fails_leaves_its_items_to_the_next_opening(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = filled(still.opened(owner="me"), "ab")
    fetched(q, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Session, "end", FailsOnce(OSError("broken")))
        with pytest.raises(OSError, match="broken"):
            q.close()
    assert drained(still.opened(owner="me")) == ["a", "b"]


def test_a_client_replaced_while_it_opens_ends_no_session(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members that it finds are those of the client that has the name now."""
    filled(still.opened(), "a")
    end_earlier = Owner._end_earlier
    later: list[Any] = []

    def overtaken(owner: Owner) -> None:
        if not later:
            later.append(None)
            later[0] = still.opened(owner="me")
            assert later[0].get_nowait() == "a"
        end_earlier(owner)

    monkeypatch.setattr(Owner, "_end_earlier", overtaken)
    with pytest.raises(OwnerReplaced):
        still.opened(owner="me")
    later[0].ack("a")
    assert later[0].empty()


def test_a_session_that_may_not_enrol_is_ended(still: Still) -> None:
    """A refused client that tries again would leave a session each time, until its object is collected."""
    old = still.opened(owner="me")
    still.opened(owner="me")
    before = len(still.stored())
    with pytest.raises(OwnerReplaced):
        old.get_nowait()
    assert len(still.stored()) == before


def test_a_session_that_begins_strikes_all_that_have_lapsed(still: Still) -> None:
    q = still.opened(owner="me", ttr=10)
    proxies = [q.connect() for _ in range(3)]
    still.clock.advance(10)
    still.end_the_dead()
    still.tick()
    assert all(proxy._session.lost for proxy in proxies)
    assert q.empty()
    q.connect()
    under = q._client.owner._under
    assert len([key for key, _ in still.stored() if key.startswith(under)]) == 2  # the claim, and a member
