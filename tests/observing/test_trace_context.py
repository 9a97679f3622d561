"""The stored form of a trace context."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fdbqueue.core import limits
from fdbqueue.tasks.stored.records import packed_trace, unpacked_trace

TEXTS = st.sampled_from(["", "a", "ä", "1" * 55, "x" * 200, "y" * 900, "z" * 1_500])


@settings(max_examples=50)
@given(st.dictionaries(TEXTS, TEXTS, max_size=6))
def test_what_is_stored_are_the_first_entries_within_the_bound(carrier):
    stored = packed_trace(carrier)
    found = unpacked_trace(stored) or {}
    assert len(stored) <= limits.TRACE_BYTES_MAX
    assert list(found.items()) == list(carrier.items())[: len(found)]
    assert found == carrier or len(packed_trace(dict(list(carrier.items())[: len(found) + 1]))) == len(stored)


def test_a_context_at_the_bound_is_stored_whole():
    whole = {
        "traceparent": "x" * (limits.TRACE_BYTES_MAX - len(packed_trace({"traceparent": "x" * 300})) + 300)
    }
    assert len(packed_trace(whole)) == limits.TRACE_BYTES_MAX
    assert packed_trace({"traceparent": whole["traceparent"] + "x"}) == b""


@settings(max_examples=50)
@given(st.binary(max_size=40))
def test_damaged_bytes_are_no_context(stored):
    found = unpacked_trace(stored)
    assert found is None or all(isinstance(text, str) for text in (*found, *found.values()))
