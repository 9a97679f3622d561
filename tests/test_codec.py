"""What goes in comes back equal, or is refused before anything is written."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdbqueue.core.codec import MsgspecCodec, RegisteredCodec, codec_named
from fdbqueue.core.errors import PayloadUnreadable, UnknownCodec

WANTED = {"typed": int, "json": None}
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(JSON_VALUES)
def test_json_returns_an_equal_value(value: Any) -> None:
    codec = codec_named("json")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("value", [b"\x00\xff", {1: b"x"}, {"a": [None, 1.5]}, 2**63], ids=repr)
def test_msgpack_carries_bytes_and_keys_of_any_type(value: Any) -> None:
    codec = codec_named("msgpack")
    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize(
    "value", [(1, 2), {1}, 2**64, math.nan, pytest.param(object(), id="an object")], ids=repr
)
def test_msgpack_refuses_what_would_come_back_different(value: Any) -> None:
    with pytest.raises(TypeError):
        codec_named("msgpack").encode(value)


def test_bytes_carries_bytes_only() -> None:
    codec = codec_named("bytes")
    assert codec.decode(codec.encode(b"\x00")) == b"\x00"
    for value in ("text", None, 1, bytearray(b"x")):
        with pytest.raises(TypeError):
            codec.encode(value)


@pytest.mark.parametrize("name", ["pickle", "", None, ["json"]])
def test_an_unknown_codec_is_named_in_the_error(name: Any) -> None:
    with pytest.raises(UnknownCodec) as raised:
        codec_named(name)
    assert raised.value.codec == name


def test_what_another_codec_wrote_is_unreadable() -> None:
    for name in ("json", "msgpack"):
        with pytest.raises(PayloadUnreadable):
            codec_named(name).decode(b"\xc1{")


@pytest.mark.parametrize("name", ["typed", "json", "registered"])
def test_a_payload_is_not_unreadable_for_want_of_memory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a take would set it aside, though another process can read it."""

    class Full:
        def encode(self, _: object) -> bytes:
            raise MemoryError

        def decode(self, _: bytes) -> object:
            raise MemoryError

    codec = RegisteredCodec(name, Full()) if name == "registered" else MsgspecCodec("json", WANTED[name])
    if isinstance(codec, MsgspecCodec):
        monkeypatch.setattr(codec, "_decode", Full().decode)
    with pytest.raises(MemoryError):
        codec.decode(b"1")
