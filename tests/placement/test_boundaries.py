"""Boundaries between partitions: lines of rangeconfig, as pure functions over keys."""

import json
from itertools import pairwise

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.rows import below
from fdbqueue.operate.spreading import (
    Piece,
    boundaries_shown,
    crowded,
    dropped,
    escaped,
    inside,
    lines_for,
    lines_to_remove,
    nudged,
    pieces_of,
    sharing,
)

PREFIXES = [b"q\x15\x01", b"q\x15\x01\x15\x1c\x01", b"q\x15\x01\x15\x1c\x02"]


def test_each_byte_of_a_key_is_escaped() -> None:
    assert escaped(b'\x00a";\xff\\ ') == r"\x00\x61\x22\x3b\xff\x5c\x20"


def test_pieces_cover_the_queue_without_gaps() -> None:
    pieces = pieces_of(PREFIXES)
    assert [piece.begin for piece in pieces] == PREFIXES
    assert all(left.end == right.begin for left, right in pairwise(pieces))
    assert pieces[-1].end == below(PREFIXES[0]).stop == b"q\x15\x02"


def test_the_end_of_a_prefix_of_highest_bytes_is_shorter() -> None:
    assert below(b"q\x15\xff").stop == b"q\x16"


def test_neighbours_have_different_team_ids() -> None:
    """With equal ones, two ranges would become one, without a boundary between."""
    ids = [piece.team_id for piece in pieces_of(PREFIXES)]
    assert len(set(ids)) == len(PREFIXES)
    assert pieces_of([b"q\x15\x01"])[-1].team_id != pieces_of([b"q\x15\x02"])[0].team_id


def test_lines_keep_other_options_of_a_range() -> None:
    assert lines_for([Piece(b"a", b"b", 7)]) == [r"rangeconfig update \x61 \x62 teamID 7"]
    assert lines_to_remove([b"a", b"a\x15\x01"]) == [r"rangeconfig set \x61 \x62 default"]


def test_a_nudge_is_a_new_boundary_before_all_keys() -> None:
    piece = Piece(b"p", b"q", 1)
    first = nudged(piece, {b"p", b"q"})
    second = nudged(piece, {b"p", b"p\x00", b"q"})
    assert (first.begin, second.begin) == (b"p\x00", b"p\x00\x00")
    assert b"p" < first.begin < second.begin < b"p\x02"
    assert len({piece.team_id, first.team_id, second.team_id}) == 3


def test_boundaries_are_read_from_rangeconfig_show() -> None:
    shown = {"ranges": [{"begin": "q\u0015\u0001", "end": "q\u00ff", "configuration": {"teamID": 1}}]}
    assert boundaries_shown(json.dumps(shown)) == {b"q\x15\x01", b"q\xff"}


def test_partitions_beyond_the_even_part_are_crowded() -> None:
    assert crowded([["a"], ["a"], ["a"], ["b"]], servers=2) == [2]
    assert crowded([["a"], ["b"], ["c"]], servers=3) == []
    assert crowded([["a", "b"], ["a", "b"], ["b", "c"]], servers=3) == [2]
    assert crowded([], servers=0) == []


def test_partitions_with_the_same_servers_share_a_team() -> None:
    assert sharing([["a", "b"], ["b", "a"], ["a", "c"]]) == [[0, 1]]
    assert sharing([["a"], ["b"]]) == []


def test_parts_of_receipts_are_even_and_in_order() -> None:
    keys = RootKeys(Subspace(("root",)))
    parts = keys.receipts_in(4)
    names = [bytes((number,)) + bytes(11) for number in range(256)]
    counts = [sum(keys.receipt(name, 1) >= part for name in names) for part in parts]
    assert counts == [256, 192, 128, 64]


@pytest.mark.parametrize("number", [1, 2, 12, 64, 256])
def test_the_owners_of_a_part_are_asked_for_a_key_in_it(number: int) -> None:
    parts = RootKeys(Subspace(("root",))).receipts_in(number)
    assert len(parts) == min(number, 64)
    for prefixes in (parts, PREFIXES):
        assert all(piece.begin < inside(piece.begin) < piece.end for piece in pieces_of(prefixes))


def test_boundaries_of_dropped_queues_are_found() -> None:
    root = RootKeys(Subspace(("r",)))
    begins = [(root.contents(7).key(), root.contents(8).key()), (root.contents(300)["p"].key(), b"\xff")]
    begins += [(b"elsewhere", b"f"), (root.receipts_in(2)[0], b"\xff")]
    ranges = [{"begin": b.decode("latin-1"), "end": e.decode("latin-1")} for b, e in begins]
    text = json.dumps({"ranges": ranges})
    assert dropped(text, root, known=()) == [7, 300]
    assert dropped(text, root, known={7}) == [300]
