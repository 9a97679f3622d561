"""Noisy task keys: those with more of the running tasks than an equal share, and over a tenth."""

import pytest

from fdbqueue.core import limits
from fdbqueue.tasks.noisy import NoisyKey, _keys_of, noisy_keys, noisy_of
from tests.tasks.support import MakeBench, SetLimits


@pytest.mark.parametrize(
    ("taken", "noisy"),
    [
        ({}, []),
        ({b"a": 5}, []),  # there is no other key
        ({b"a": 5, b"b": 5}, []),
        ({b"a": 9, b"b": 1}, [b"a"]),
        ({b"a": 3, b"b": 1}, []),
        ({b"a": 11, **{bytes([n]): 1 for n in range(89)}}, [b"a"]),
        ({b"a": 10, **{bytes([n]): 1 for n in range(90)}}, []),
        ({b"a": 20, b"b": 30, **{bytes([n]): 1 for n in range(50)}}, [b"b", b"a"]),
    ],
)
def test_a_noisy_key_has_over_a_tenth(taken: dict[bytes, int], noisy: list[bytes]) -> None:
    assert [key for key, _ in noisy_of(taken)] == noisy


@pytest.mark.parametrize("kind", ["fair", "utube"])
def test_noisy_keys_of_a_queue_are_named(bench: MakeBench, kind: str) -> None:
    b = bench(kind, **({"key_concurrency": 9} if kind == "utube" else {}))
    for key in ["loud"] * 4 + ["calm"]:
        b.put("x", key=key)
    for _ in range(5):
        b.take()
    assert noisy_keys(b.db, b.queue) == [NoisyKey("loud", 4, 0.8)]


def test_a_key_that_keeps_all_workers_is_noisy(bench: MakeBench) -> None:
    b = bench("fair")
    for key in ["loud"] * 4 + ["calm"]:
        b.put("x", key=key)
    b.queue.alter(b.db, weights={"loud": 9})
    for _ in range(4):
        b.take()
    assert noisy_keys(b.db, b.queue) == [NoisyKey("loud", 4, 1.0)]


def test_a_kind_without_task_keys_has_none(bench: MakeBench) -> None:
    b = bench("fifo")
    assert noisy_keys(b.db, b.queue) is None


def test_a_look_reads_a_bounded_number_of_tasks(bench: MakeBench, set_limits: SetLimits) -> None:
    """The first four taken tasks are two of each key."""
    set_limits(RUNS_LOOKED_AT_MAX=4)
    b = bench("fair")
    for key in "abab":
        b.put("x", key=key)
    for _ in range(4):
        b.take()
    assert noisy_keys(b.db, b.queue) == []
    for _ in range(20):
        b.put("x", key="c")
        b.take()
    assert sum(one.taken for one in noisy_keys(b.db, b.queue) or ()) <= limits.RUNS_LOOKED_AT_MAX


def test_partitions_share_the_reads_of_a_look(bench: MakeBench, set_limits: SetLimits) -> None:
    """Each partition has more taken tasks than its part of them."""
    set_limits(RUNS_LOOKED_AT_MAX=6)
    b = bench("fair", partitions=2)
    for key in range(40):
        b.put("x", key=key)
        b.take()
    assert b.queue._see_all(b.db, _keys_of)[0].total() == limits.RUNS_LOOKED_AT_MAX


def test_a_damaged_key_is_not_named(bench: MakeBench) -> None:
    b = bench("fair")
    for key in ["loud"] * 4 + ["calm"]:
        b.put("x", key=key)
        b.take()
    under = b.queue._shape.keys.taken
    for row in list(b.db.get_range(under.start, under.stop))[:4]:
        b.db[row.key] = b"\xff"
    assert [one.key for one in noisy_keys(b.db, b.queue) or ()] == []
