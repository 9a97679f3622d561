"""Noisy task keys: those with more of the running tasks than an equal share, and over a tenth."""

import shlex

import pytest
from fdb import tuple as layer

from fdbqueue import Why
from fdbqueue.core import limits
from fdbqueue.core.redaction import HIDDEN, redaction_of
from fdbqueue.operate.cli.queues import weight_of
from fdbqueue.tasks.noisy import NoisyKey, _alter, _keys_of, noisy_keys, noisy_of, overtaker_of
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


LOUD, CALM = layer.pack(("loud",)), layer.pack(("calm",))


def test_explain_names_the_weight_that_overtakes(bench: MakeBench) -> None:
    """Of a task of that key, too, as it may be the first one that waits."""
    b = bench("fair")
    waits = [b.put("x", key=key) for key in ["loud"] * 5 + ["calm"] * 2][-1]
    own = b.put("x", key="loud")
    b.queue.alter(b.db, weights={"loud": 2_000, "x": 3})
    for _ in range(5):
        b.take()
    found, cure = b.queue.explain(b.db, waits), "fdbqueue alter bench --weight loud=1 --weight x=3"
    text = "The key loud has 100% of the taken tasks, by its weight 2000; that of the key calm is 1."
    assert (found.overtaken_by, found.reasons[0].text, found.reasons[0].cure) == ("loud", text, cure)
    assert "More workers" not in str(found.reasons)
    first, *_ = b.queue.explain(b.db, own).reasons
    assert (first.why, first.cure) == (Why.BEHIND, cure)
    b.queue.pause(b.db)
    assert [one.why for one in b.queue.explain(b.db, waits).reasons][:2] == [Why.PAUSED, Why.BEHIND]


def test_a_hidden_key_stands_in_no_reason(bench: MakeBench) -> None:
    b = bench("fair", weights={"loud": 2_000})
    waits = [b.put("x", key=key) for key in ["loud"] * 3 + ["calm"] * 2][-1]
    for _ in range(3):
        b.take()
    found, redaction = b.queue.explain(b.db, waits), redaction_of(["key"])
    assert redaction is not None
    shown = redaction.explanation(found)
    assert (shown.overtaken_by, shown.reasons[0].cure) == (HIDDEN, HIDDEN)
    assert "loud" in str(found)
    assert "loud" not in str(shown)


@pytest.mark.parametrize(
    ("count", "own", "weights", "cure"),
    [
        (9, CALM, {LOUD: 9}, "--weight loud=1"),
        (8, CALM, {LOUD: 9}, None),  # it does not take nearly all
        (9, CALM, {LOUD: 9, CALM: 4}, "--weight loud=4 --weight calm=4"),
        (6, CALM, {}, "--weight calm=2"),  # its tasks run long
        (6, CALM, {LOUD: 2, CALM: 3}, "--weight loud=2 --weight calm=6"),
        (4, CALM, {}, None),
        (9, LOUD, {LOUD: 9}, "--weight loud=1"),
        (9, LOUD, {}, None),
    ],
)
def test_a_cause_that_cannot_be_told_has_no_cure(
    count: int, own: bytes, weights: dict[bytes, int], cure: str | None
) -> None:
    found = overtaker_of("q", LOUD, count, 10, own, weights)
    assert (found and found.reason.cure.removeprefix("fdbqueue alter q ")) == cure


@pytest.mark.parametrize("key", ["a b", "7", "true", '"x', "[", 7, ("a", 1)])
def test_the_command_spells_each_key_as_it_is_read(key: object) -> None:
    command = shlex.split(_alter("q", {layer.pack((key,)): 2}))
    assert weight_of(command[-1]) == (key, 2)


def test_many_weights_and_bytes_are_not_spelled() -> None:
    many = {layer.pack((n,)): 2 for n in range(limits.WEIGHTS_TOLD_MAX + 1)}
    for weights in (many, {layer.pack((b"a",)): 2}):
        assert _alter("q", weights).startswith("Alter its weights: `fdbqueue alter q --weight KEY=N`")
