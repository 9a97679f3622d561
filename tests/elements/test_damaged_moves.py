"""Moves beside damage: an element that cannot be read stops no other."""

import os
from pathlib import Path

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database
from fdbqueue.core import limits
from fdbqueue.queues.elements.folder import Folder, folder_at
from fdbqueue.queues.elements.moving import export_to, import_from
from tests.elements.test_dirq import LAYOUTS, Pieces, contents, left, sides


def descriptors_below(path: str) -> list[str]:
    """The open files and directories below `path`."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    return [
        target for link in links if os.path.lexists(link) and (target := os.readlink(link)).startswith(path)
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_export_sets_a_damaged_element_aside(
    db: Database, space: Subspace, tmp_path: Path, layout: str
) -> None:
    both = sides(layout, tmp_path / "dirq", space)
    names = [both.queue.add(db, both.data(number)) for number in range(3)]
    db[both.queue.store.keys.payload(names[1], 0)] = b"\xc1"
    [(name, reason)] = left(export_to(both.folder(), db, both.queue))
    assert name == names[1]
    assert "is damaged" in reason
    assert both.queue.unreadable(db) == 1
    assert list(both.real) == [names[0], names[2]]
    assert left(export_to(both.folder(), db, both.queue)) == []


@pytest.mark.parametrize("change", ["a directory", "too large"])
def test_an_element_that_changes_on_its_way_stops_no_other(
    db: Database, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """With the names of its pieces, it is larger than an element may be."""
    monkeypatch.setattr(limits, "PAYLOAD_BYTES_MAX", 1_000)
    both = Pieces(tmp_path / "dirq", space)
    changed, other = both.add(both.data(1)), both.add(both.data(2))
    look = Folder._require_element

    def change_it(folder: Folder, place: str, at: int) -> None:
        look(folder, place, at)
        if place == folder._coming(changed):
            piece = Path(both.path, "fdbqueue", place, "body")
            if change == "too large":
                piece.write_bytes(b"x" * 1_000)
            else:
                piece.unlink()
                piece.mkdir()

    monkeypatch.setattr(Folder, "_require_element", change_it)
    assert [name for name, _ in left(import_from(folder_at(both.path), db, both.queue))] == [changed]
    assert descriptors_below(both.path) == []
    assert contents(db, both.queue) == [both.data(2)]
    assert other not in list(both.real)
