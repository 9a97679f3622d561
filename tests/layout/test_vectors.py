"""The code leaves the keys that the vectors tell, and no others."""

import json
from collections.abc import Iterator
from contextlib import closing

import jsonschema
import pytest

from fdbqueue.operate.conformance import (
    Vector,
    escaped,
    heard,
    merged,
    plain,
    question,
    ranges_of,
    stored_vectors,
    unescaped,
    vectors_in,
)
from fdbqueue.tasks.options import IN_ORDER_OF_ARRIVAL, kind_names
from tests.system.vectors.script import Applier, repeated
from tests.system.vectors.verbs import stored_schema, told
from tests.system.vectors.writing import FILE, made, text_of

STORED = stored_vectors()
VECTORS = [*vectors_in(STORED)]
OF_TASKS = {"create", "put", "put_many", "take", "ack", "release", "bury", "kick", "delete", "cancel"}


@pytest.fixture(scope="module")
def applier() -> Iterator[Applier]:
    with closing(Applier()) as one:
        yield one


def test_the_file_is_what_this_code_makes():
    """`make vectors` rewrites it: then the diff shows each change of the layout."""
    assert text_of(made()) == FILE.read_text()


def test_a_call_on_the_keys_before_leaves_the_keys_after(applier, rounds):
    """In short: the last call of each script."""
    last = {vector.name.split("#")[0]: vector for vector in VECTORS}
    for vector in rounds([*last.values()], VECTORS):
        again(applier, vector)


def again(applier: Applier, vector: Vector) -> None:
    applied = applier.apply(
        vector.before, vector.kind, vector.verb, vector.call, vector.now_us, repeated(list(vector.random))
    )
    assert applied.after == vector.after, vector.name
    assert plain(applied.returns) == vector.returns, vector.name
    assert applied.conflicts == vector.conflicts, vector.name


def test_the_file_has_its_schema():
    schema = stored_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(STORED, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("kind", kind_names())
def test_each_kind_of_task_has_all_its_verbs(kind):
    verbs = {vector.verb for vector in VECTORS if vector.kind == kind}
    assert verbs >= OF_TASKS


def test_each_verb_has_a_call_that_changes_something():
    """But for verbs that only look."""
    changing = {(one.kind, one.verb) for one in VECTORS if one.before != one.after}
    looks = {"peek", "size", "statistics", "count", "get"}
    assert {(one.kind, one.verb) for one in VECTORS if one.verb not in looks} <= changing


def test_a_call_that_refuses_changes_nothing():
    refusals = [one for one in VECTORS if one.refuses]
    assert {one.kind for one in refusals} == {"queue", "fifo", "elements", "simple-elements", "fair-queue"}
    assert all(one.before == one.after and one.conflicts is None for one in refusals)


@pytest.mark.parametrize("data", [b"", b"plain", b'%"\\+ \x00\xff', b"x" * 100, b"a" + bytes(40) + b"b"])
def test_bytes_come_back_from_their_text(data):
    assert unescaped(escaped(data)) == data
    assert heard(told(data)) == data


def test_a_long_run_of_one_byte_is_short():
    assert told(b"\x01" + bytes(31)) == ["%01", ["%00", 31]]


def test_ranges_that_touch_are_one():
    assert merged([(b"c", b"d"), (b"a", b"b"), (b"b", b"c"), (b"x", b"x")]) == ((b"a", b"d"),)
    assert ranges_of(["a", ["b", "d"]]) == ((b"a", b"a\x00"), (b"b", b"d"))


def test_a_put_conflicts_with_the_definition_only():
    """In queues in the order of arrival: puts never conflict with each other."""
    puts = [one for one in VECTORS if one.name.startswith(f"{IN_ORDER_OF_ARRIVAL}#") and one.verb == "put"]
    assert puts
    for vector in puts:
        assert vector.conflicts is not None
        [(begin, _)] = vector.conflicts.reads
        assert begin == unescaped(STORED["root"]) + b"\x14\x02fifo\x00"
        assert not vector.conflicts.writes


def test_the_examples_of_the_pages_are_vectors():
    docs = FILE.parents[3] / "docs"
    step, asked = (
        json.loads((docs / page).read_text().split("```json\n")[1].split("```")[0])
        for page in ("layout.md", "conformance.md")
    )
    [vector] = [vector for vector in VECTORS if vector.name == "queue#3"]
    assert step in STORED["scripts"][0]["steps"]
    assert asked == json.loads(question(3, STORED["root"], vector))
