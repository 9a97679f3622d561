"""Owners: a client that comes back gets at once what it had (section 2.1: identity beyond the process)."""

import gc

import pytest

from fdbqueue import limits
from fdbqueue.errors import NotUnacked, OwnerReplaced
from tests.persistent.conftest import Opened, Still
from tests.persistent.support import drained, fetched, filled


def test_reopening_gives_back_at_once_what_the_name_had_in_all_its_proxies(opened: Opened) -> None:
    """10 put, 10 fetched, no clean-up, reopened: 10 wait, none is un-acked."""
    q = filled(opened(owner="me"), range(10))
    proxies = [q.connect() for _ in range(3)]
    assert [proxy.get() for proxy in (q, *proxies, *proxies, *proxies)] == list(range(10))
    again = opened(owner="me")
    assert again.qsize() == 10
    assert again.unacked == []
    assert drained(again) == list(range(10))


def test_what_others_have_stays_theirs(opened: Opened) -> None:
    nameless, other, mine = filled(opened(), "abc"), opened(owner="other"), opened(owner="me")
    elsewhere = filled(opened("elsewhere", owner="me"), "d")
    assert [nameless.get(), other.get(), mine.get(), elsewhere.get()] == ["a", "b", "c", "d"]
    assert opened(owner="me").get() == "c"
    nameless.ack("a")
    other.ack("b")
    elsewhere.ack("d")


def test_who_has_lost_the_name_acks_and_fetches_nothing_more(opened: Opened) -> None:
    old = filled(opened(owner="me"), "ab")
    proxy = old.connect()
    assert proxy.get() == "a"
    new = opened(owner="me")
    with pytest.raises(NotUnacked):
        proxy.ack("a")
    for call in (proxy.get, old.get, old.connect):
        with pytest.raises(OwnerReplaced):
            call()
    old.put("c")  # what it makes is as welcome as anybody's
    assert drained(new) == ["a", "b", "c"]


def test_reopening_is_bounded_however_many_proxies_died(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DEAD_SESSIONS_MAX", 2)
    q = filled(opened(owner="me"), range(7))
    proxies = [q.connect() for _ in range(7)]
    assert [proxy.get() for proxy in proxies] == list(range(7))
    assert drained(opened(owner="me")) == list(range(7))


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
    assert len(members) <= 3  # the claim, who has just ended, who has not begun


def test_what_an_ended_proxy_could_not_give_back_is_at_the_front_before_it_is_forgotten(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = filled(still.opened(owner="me"), "ab")
    proxy = q.connect()
    assert proxy.get_nowait() == "a"
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.sessions.ending._finish", lambda *_, **__: None)
        del proxy
        gc.collect()
        still.tick()
    assert q.connect().get_nowait() == "a"


def test_a_name_goes_on_after_its_session_has_lapsed(still: Still) -> None:
    q = filled(still.opened(owner="me", ttr=10), "ab")
    assert q.get_nowait() == "a"
    still.clock.advance(10)
    still.end_the_dead()
    still.tick()
    assert fetched(q, 2) == ["a", "b"]
    assert drained(still.opened(owner="me")) == ["a", "b"]


def test_what_was_half_way_to_its_end_is_finished_at_once(
    still: Still, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever noticed the death died itself, before it had given anything back."""
    q = filled(still.opened(owner="me", ttr=10), "abc")
    fetched(q, 2)
    still.clock.advance(10)
    with monkeypatch.context() as patch:
        patch.setattr("fdbqueue.sessions.ending._finish", lambda *_: None)
        still.end_the_dead()
    assert still.opened(owner="me").qsize() == 3


def test_nothing_is_left_behind_by_proxies_that_end(still: Still) -> None:
    """Neither when they are closed, nor when they are found to be dead and the name is opened again."""
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
