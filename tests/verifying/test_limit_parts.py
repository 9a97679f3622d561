"""Corruptions of limits of slots and a rate: each is found, and mending ends it."""

from collections.abc import Callable
from typing import Any

import pytest

import fdbqueue
from fdbqueue import Database, Flaw, Limit, TaskQueue, verify
from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.tasks.limits.rule import LimitKeys
from fdbqueue.tasks.limits.state import number_bytes
from tests.verifying.corruptions import Corruptions, require_found_and_mended

HOST = LimitKeys(RootKeys(DEFAULT_ROOT).prefix, "host")
OTHER = LimitKeys(RootKeys(DEFAULT_ROOT).prefix, "other")
A, B, C = key_bytes("a"), key_bytes("b"), key_bytes("c")


def first(db: Database, under: slice) -> bytes:
    return next(bytes(row.key) for row in db.get_range(under.start, under.stop))


def forget_due(db: Database) -> None:
    """The lane of a key with a slot, and without a token, has no time at which it opens."""
    db.clear(first(db, HOST.dues))
    row = bytes(db[HOST.key_tokens(B)])
    db.set(HOST.key_tokens(B), row[:8] + number_bytes(0) + row[16:])


CORRUPTIONS: Corruptions = {
    "the row of slots is missing": (lambda db: db.clear(HOST.count(A)), {Flaw.COUNTER, Flaw.TIMER}),
    "the row of slots counts too many": (lambda db: db.add(HOST.count(A), number_bytes(2)), {Flaw.COUNTER}),
    "the time of a row of tokens is missing": (lambda db: db.clear(first(db, HOST.overs)), {Flaw.TIMER}),
    "the time of a token is missing": (lambda db: db.clear(first(db, HOST.dues)), {Flaw.TIMER}),
    "nothing opens a lane without a token": (forget_due, {Flaw.TIMER}),
    "a time has no key": (lambda db: db.set(HOST.due(7, C), b""), {Flaw.TIMER}),
    "tokens of a limit without a rate": (
        lambda db: db.set(OTHER.key_tokens(A), number_bytes(7) * 3),
        {Flaw.STRAY},
    ),
    "tokens of no limit": (
        lambda db: db.set(LimitKeys(RootKeys(DEFAULT_ROOT).prefix, "gone").tokens, b"x"),
        {Flaw.STRAY},
    ),
}


@pytest.fixture
def db() -> Any:
    """The key "a" has neither a slot nor a token, and "b" has a slot."""
    with fdbqueue.open("memory:") as database:
        Limit.set(database, "host", slots=1, rate=1, per=1e6, burst=1, per_key=True)
        Limit.set(database, "other", slots=1, per_key=True)
        queue = TaskQueue.create(database, "q", task_limits=["host"])
        for key in "aabb":
            queue.put(database, key, limits={"host": key})
        _, of_b = queue.take_many(database, 9)
        queue.ack(database, of_b)
        yield database


@pytest.mark.parametrize(("corrupt", "flaws"), CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_a_corruption_is_found_and_mended(
    db: Database, corrupt: Callable[[Database], Any], flaws: set[Flaw]
) -> None:
    require_found_and_mended(db, corrupt, flaws, 3)
    assert Limit.open(db, "host").used == 1
    assert TaskQueue.open(db, "q").take_many(db, 9) == []


def test_a_sound_limit_has_no_findings(db: Database) -> None:
    assert verify(db).findings == ()
