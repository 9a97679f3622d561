"""Columns: their tables agree with the page of the layout and with the vectors, and read what they build."""

import re
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue.core import root_keys
from fdbqueue.core.columns import UNKNOWN, Packed, Part, Table
from fdbqueue.core.line import decision
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.operate.conformance import stored_vectors, vectors_in
from fdbqueue.queues.elements import store
from fdbqueue.queues.elements.store import ElementKeys
from fdbqueue.queues.recipe import items
from fdbqueue.queues.recipe.items import QueueKeys
from fdbqueue.tasks.limits import rule
from fdbqueue.tasks.stored import records
from fdbqueue.tasks.stored.records import TaskKeys

PAGE = (Path(__file__).parent.parent / "docs" / "layout.md").read_text()
TABLES: dict[str, Table] = {"R": root_keys.R, "L": decision.L}
OF_SECTIONS = {
    "The recipe queue": items.S,
    "Tasks": records.S,
    "Partitions": records.S,
    "Elements": store.S,
}
BY_HAND = ("R[2, id]", "S[3]", "S[8]", "S[25]", "S[26]", "S[37]")
"""Keys that begin a subspace, or that no column builds."""
ROOT = RootKeys(Subspace(("q",)))
PREFIX = b"prefix"
SAMPLES: dict[Any, Any] = {int: 7, str: "name", bytes: b"bytes", tuple: (1, "a")}


def rows() -> list[tuple[Table, str]]:
    """The keys of the page, each with the table of its section."""
    found = []
    for section in PAGE.split("\n## ")[1:]:
        of_section = OF_SECTIONS.get(section.partition("\n")[0])
        for key in re.findall(r"^\| `([RSL]\[[^`]*)` \|", section, re.MULTILINE):
            table = TABLES.get(key[0], of_section)
            assert table is not None, f"{key} stands in a section without columns"
            found.append((table, key))
    return found


def test_each_key_on_the_page_has_the_parts_of_a_column():
    found = rows()
    assert len(found) > 30
    for table, key in found:
        numbers, _, behind = key[2:].partition("]")
        number, *parts = numbers.split(", ")
        shapes = [len(column.parts) for column in table.columns if column == int(number)]
        assert len(parts) + len(behind.split()) in shapes or key.startswith(BY_HAND), key


def test_each_key_of_the_vectors_has_a_shape_of_the_columns():
    for vector in vectors_in(stored_vectors()):
        for key in {**vector.before, **vector.after}:
            if key.startswith(ROOT.prefix):
                id_ = ROOT.id_in(key) if key.startswith(ROOT.all_contents.start) else None
                is_right = (
                    ROOT.shape_of(key)[0] is not None
                    if id_ is None
                    else is_known(vector.kind, ROOT.contents(id_), key)
                )
                assert is_right, (vector.name, key)


def is_known(kind: str, contents: Subspace, key: bytes) -> bool:
    if kind == "queue":
        number = QueueKeys(contents).parts_of(key)[0]
        return number is not None or TaskKeys(contents).has_shape(key)
    if "elements" in kind:
        return ElementKeys(contents).is_key(key)
    return TaskKeys(contents).has_shape(key)


@pytest.mark.parametrize("table", [records.S, decision.L, store.S], ids=["tasks", "line", "elements"])
def test_a_plain_column_reads_the_parts_that_it_builds_a_key_of(table):
    for column in table.columns:
        parts = [sample_of(part) for part in column.parts]
        key = column.key(PREFIX)(*parts)
        number, rest = table.parts_of(PREFIX)(key)
        assert (number, column.start(PREFIX) + rest) == (column, key)
        assert column.all(PREFIX).start <= key < column.all(PREFIX).stop
        if any(part.shortest != part.longest for part in column.parts[:-1]):
            with pytest.raises(IndexError):
                column.last(PREFIX)
        elif parts:
            assert (column.first(PREFIX)(key), column.last(PREFIX)(key)) == (parts[0], parts[-1])
            assert len(parts) != 2 or column.pair(PREFIX)(key) == tuple(parts)


def sample_of(part: Part[Any]) -> Any:
    if part.pack is None:
        return b"x" * part.shortest
    return 7 if part.read == int.from_bytes else "name"


@pytest.mark.parametrize("table", [records.S, decision.L], ids=["tasks", "line"])
def test_a_plain_key_has_a_shape_by_its_number_of_bytes(table):
    has_shape = table.has_shape(PREFIX)
    for column in table.columns:
        shortest, longest = column.sizes
        assert has_shape(column.start(PREFIX) + b"x" * shortest)
        assert has_shape(column.start(PREFIX) + b"x" * longest)
        assert not has_shape(
            column.start(PREFIX) + b"x" * (max(c.sizes[1] for c in table.columns if c == column) + 1)
        )


def test_a_key_of_another_prefix_is_in_no_column():
    assert records.S.parts_of(PREFIX)(b"another" + records.TASK.code)[0] == UNKNOWN


@pytest.mark.parametrize("table", [root_keys.R, root_keys.IMPORTS, root_keys.SWEEPS, rule.N, items.S])
def test_a_packed_column_reads_the_parts_that_it_builds_a_key_of(table):
    for column in table.columns:
        assert isinstance(column, Packed)
        parts = tuple(SAMPLES[kind] for kind in column.parts)
        key = column.key(PREFIX)(*parts)
        assert column.parse(PREFIX)(key) == parts
        assert column.parse(PREFIX)(key + b"\x14") is None
        assert column.parse(PREFIX)(b"another" + key) is None
        if parts:
            assert (column.first(PREFIX)(key), column.last(PREFIX)(key)) == (parts[0], parts[-1])
            assert column.all(PREFIX).start <= key < column.all(PREFIX).stop


def test_numbers_end_slices_behind_the_ones_that_they_name():
    for column, parts in ((records.TIMER, (b"x" * 20,)), (root_keys.BEAT_DUE, (b"x",))):
        until, after, key = column.until(PREFIX), column.after(PREFIX), column.key(PREFIX)
        assert until(7).start <= key(7, *parts) < until(7).stop <= key(8, *parts)
        assert key(7, *parts) < after(7).start <= key(8, *parts) < after(7).stop
