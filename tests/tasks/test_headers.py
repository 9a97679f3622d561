"""Headers: texts beside the data, which stay with the task and need no codec."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.tasks.stored.records import Extra, Record, checked_headers, new_id, record_of, record_to_bytes
from tests.tasks.support import MakeBench

HEADERS = {"tenant": "acme", "content-type": "text/plain"}


def test_headers_cost_no_key(bench: MakeBench) -> None:
    b = bench()
    b.put("x")
    without = len(b.contents())
    b.put("x", headers=HEADERS)
    assert len(b.contents()) == 2 * without


@pytest.mark.parametrize(
    "headers",
    [
        "tenant",
        [("a", "b")],
        {"a": 1},
        {1: "a"},
        {"a": b"b"},
        {"a": "\ud800"},
        {"a": "x" * limits.HEADERS_BYTES_MAX},
        {str(n): "" for n in range(limits.HEADERS_BYTES_MAX)},
    ],
    ids=["text", "pairs", "number", "name", "bytes", "surrogate", "long", "many"],
)
def test_headers_that_cannot_be_stored_are_refused(bench: MakeBench, headers: Any) -> None:
    b = bench()
    with pytest.raises(InvalidArgument, match="headers"):
        b.put("x", headers=headers)
    assert b.contents() == []


@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=20), st.text(max_size=30), max_size=9))
def test_a_record_gives_its_headers_back(headers: dict[str, str]) -> None:
    extra = Extra(checked_headers("headers", headers))
    record = Record(new_id(0, bytes(12)), "r", 0, 0, 0, 0, 0, extra=extra)
    found = record_of(record_to_bytes(record)).extra
    assert found.headers == headers


def test_a_record_of_an_earlier_release_has_no_headers() -> None:
    record = Record(new_id(0, bytes(12)), "r", 0, 0, 0, 0, 0)
    fields = msgspec.msgpack.decode(record_to_bytes(record))
    assert record_of(msgspec.msgpack.encode(fields[:-1])) == record
