"""A payload that can be put can be taken, however deep the stack of either caller is."""

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue.core import limits
from fdbqueue.core.codec import _scanned_depth, codec_named, is_deep
from fdbqueue.core.errors import PayloadUnreadable, PayloadUnsupported

T = TypeVar("T")

DEEPEST = limits.PAYLOAD_DEPTH_MAX
WIRES = {"json": msgspec.json, "msgpack": msgspec.msgpack}
VALUES = st.recursive(
    st.none() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner, max_size=20),
)


class Node(msgspec.Struct):
    next: "Node | None" = None


def nested(levels: int, value: Any = 1) -> Any:
    for level in range(levels):
        value = [value] if level % 2 else {"a[": value, "b": "[]{"}
    return value


def with_frames_above(frames: int, act: Callable[[], T]) -> T:
    return act() if frames == 0 else with_frames_above(frames - 1, act)


def near_the_end_of_the_stack(act: Callable[[], T]) -> T:
    depth, frame = 0, sys._getframe()
    while frame.f_back is not None:
        depth, frame = depth + 1, frame.f_back
    return with_frames_above(sys.getrecursionlimit() - depth - 60, act)


@pytest.fixture(params=WIRES)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_two_hundred_levels_are_carried_and_more_are_refused(name: str) -> None:
    codec = codec_named(name)
    for value in (nested(DEEPEST), nested(DEEPEST - 1, []), [nested(DEEPEST - 1), 1]):
        assert codec.decode(codec.encode(value)) == value
    for value in (nested(DEEPEST + 1), nested(DEEPEST, []), nested(985)):
        with pytest.raises(PayloadUnsupported, match="200 levels"):
            codec.encode(value)


def test_a_typed_payload_is_counted_as_it_is_stored(name: str) -> None:
    codec, node = codec_named(name, Node), Node()
    for _ in range(DEEPEST - 1):
        node = Node(node)
    assert codec.decode(codec.encode(node)) == node
    with pytest.raises(PayloadUnsupported, match="200 levels"):
        codec.encode(Node(node))


@pytest.mark.parametrize("levels", [DEEPEST + 1, 900, 5_000])
def test_a_stored_payload_that_is_deeper_is_unreadable(name: str, levels: int) -> None:
    payload = {"json": b"[" * levels + b"1" + b"]" * levels, "msgpack": b"\x91" * levels + b"\x01"}[name]
    with pytest.raises(PayloadUnreadable, match="200 levels"):
        codec_named(name).decode(payload)


@pytest.mark.parametrize("tail", [b"[" * 4_000_000, b'"' + b'\\"' * 40_000, b'"' + b'\\"' * 40_000 + b"\\\n"])
def test_a_hostile_payload_is_found_deep_in_linear_time(tail: bytes) -> None:
    """Unclosed levels were read 200 times; each quote of an open string was tried as its beginning."""
    began = time.process_time()
    with pytest.raises(PayloadUnreadable, match="200 levels"):
        codec_named("json").decode(b"[" * 5_000 + tail)
    assert time.process_time() - began < 3


def test_a_payload_is_not_unreadable_for_a_deep_stack(name: str) -> None:
    """The taker fails, and the payload does not change: another taker reads it."""
    codec = codec_named(name)
    payload = codec.encode(nested(DEEPEST))
    with pytest.raises(RecursionError):
        near_the_end_of_the_stack(lambda: codec.decode(payload))
    with pytest.raises(PayloadUnsupported, match="the stack of the caller"):
        near_the_end_of_the_stack(lambda: codec.encode(nested(DEEPEST)))


def test_a_value_that_contains_itself_twice_is_refused_at_once(name: str) -> None:
    loop: list[Any] = []
    loop += [loop, loop]
    with pytest.raises(PayloadUnsupported, match="contains itself"):
        codec_named(name).encode(loop)


@settings(max_examples=50)
@given(VALUES, st.integers(1, 5))
def test_the_depth_on_the_wire_is_the_depth_of_the_value(value: Any, limit: int) -> None:
    deep = depth_of(value) > limit
    assert (_scanned_depth(msgspec.msgpack.encode(value), limit) > limit) == deep
    for name, wire in WIRES.items():
        assert is_deep(name, wire.encode(value), limit) == deep


@pytest.mark.parametrize(
    "value",
    [
        *(b"\x91" * size for size in (3, 300, 70_000)),
        "x" * 70_000,
        *(datetime(year, 1, 1, microsecond=part, tzinfo=UTC) for year in (1, 2020, 2200) for part in (0, 1)),
        -(2**63),
        0.5,
        {1: 2},
    ],
    ids=lambda value: f"{type(value).__name__} {str(value)[:20]}",
)
def test_a_scan_goes_on_behind_a_value_of_any_size(value: Any) -> None:
    """Otherwise a part of a value would be taken for an array, or an array behind it be missed."""
    payload = msgspec.msgpack.encode([value, [[1]], value])
    assert _scanned_depth(payload, 9) == 3


def test_the_levels_of_a_key_are_levels_of_a_payload() -> None:
    """Only msgpack has such keys."""
    key: Any = 1
    for _ in range(3):
        key = (key,)
    payload = msgspec.msgpack.encode({key: 1})
    assert [is_deep("msgpack", payload, limit) for limit in (3, 4)] == [True, False]


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0
