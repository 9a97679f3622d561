"""Moving elements from and to real directory queues: compared with dirq itself, killed at every step."""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from dirq.queue import Queue as DirectoryQueue
from dirq.QueueSimple import QueueSimple
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database
from fdbqueue.core import limits
from fdbqueue.core.errors import DirectoryQueueInUse, NotADirectoryQueue
from fdbqueue.queues.elements import folder as folders
from fdbqueue.queues.elements import moving
from fdbqueue.queues.elements.base import ElementBase
from fdbqueue.queues.elements.folder import Folder, PiecesFolder, SimpleFolder, folder_at
from fdbqueue.queues.elements.moving import Moved, export_to, import_from
from tests.elements.support import SCHEMA, element_queue, simple_queue

ELEMENTS = [
    {"body": "", "blob": b"", "header": {}},
    {"body": "é\n\t\\", "blob": b"\x00\xff\r\n", "header": {"": "", "a\tb": "c\\d\n", "é": "ü"}},
    {"body": "x" * 300_000},
    *({"body": str(number)} for number in range(5)),
]
LAYOUTS = ["pieces", "simple"]


class Pieces:
    """A directory queue of pieces beside an element queue; `data` is the name of the data of an element."""

    def __init__(self, path: Path, space: Subspace) -> None:
        self.path = str(path)
        self.real = DirectoryQueue(self.path, schema=dict(SCHEMA))
        self.queue: Any = element_queue(space)

    def folder(self) -> Folder:
        return PiecesFolder.made(self.path)

    def data(self, number: int) -> Any:
        return {"body": str(number)}

    def add(self, data: Any) -> str:
        return str(self.real.add(data))

    def put_by_hand(self, name: str, number: int) -> None:
        """Under a name of our choice."""
        path = Path(self.path, name)
        path.mkdir(parents=True)
        (path / "body").write_text(str(number))

    def consume(self) -> Iterator[Any]:
        """The elements that dirq itself finds in the folder; takes them out as its consumers do."""
        real = DirectoryQueue(self.path, schema=dict(SCHEMA))
        for name in list(real):
            if real.lock(name):
                yield real.get(name)
                real.remove(name)


class Simple(Pieces):
    def __init__(self, path: Path, space: Subspace) -> None:
        self.path = str(path)
        self.real = QueueSimple(self.path)
        self.queue = simple_queue(space)

    def folder(self) -> Folder:
        return SimpleFolder.made(self.path)

    def data(self, number: int) -> Any:
        return str(number).encode()

    def put_by_hand(self, name: str, number: int) -> None:
        path = Path(self.path, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(self.data(number))

    def consume(self) -> Iterator[Any]:
        real = QueueSimple(self.path)
        for name in list(real):
            if real.lock(name):
                yield real.get(name)
                real.remove(name)


def sides(layout: str, path: Path, space: Subspace) -> Pieces:
    return (Pieces if layout == "pieces" else Simple)(path, space)


@pytest.fixture(params=LAYOUTS)
def both(request: pytest.FixtureRequest, tmp_path: Path, space: Subspace) -> Pieces:
    return sides(request.param, tmp_path / "dirq", space)


def contents(db: Database, queue: ElementBase) -> list[Any]:
    return [queue.get_element(db, name) for name in queue.names(db)]  # type: ignore[attr-defined]


def left(moves: Iterator[Moved]) -> list[tuple[str, str]]:
    return [(moved.name, moved.left) for moved in moves if moved.left]


# -- there and back -------------------------------------------------------------------------------------


def test_elements_come_in_as_they_are_in_order_under_their_names(db: Database, both: Pieces) -> None:
    added: list[Any] = [both.data(number) for number in range(5)]
    names = [both.add(data) for data in added]
    assert left(import_from(folder_at(both.path), db, both.queue)) == []
    assert contents(db, both.queue) == added
    assert list(both.queue.names(db)) == sorted(names)
    assert (both.queue.count(db), both.real.count(), list(both.real)) == (5, 0, [])


def test_elements_go_out_as_they_are_in_order_under_their_names(db: Database, both: Pieces) -> None:
    added: list[Any] = [both.data(number) for number in range(5)]
    names = [both.queue.add(db, data) for data in added]
    assert left(export_to(both.folder(), db, both.queue)) == []
    assert list(both.real) == names
    assert both.real.count() == 5
    assert list(both.consume()) == added
    assert (both.queue.count(db), list(both.queue.names(db))) == (0, [])


def test_every_kind_of_piece_goes_there_and_back(db: Database, space: Subspace, tmp_path: Path) -> None:
    both = Pieces(tmp_path / "dirq", space)
    for data in ELEMENTS:
        both.add(data)
    list(import_from(folder_at(both.path), db, both.queue))
    assert contents(db, both.queue) == ELEMENTS
    list(export_to(both.folder(), db, both.queue))
    assert list(both.consume()) == ELEMENTS


def test_a_table_is_stored_as_the_reference_stores_it(db: Database, space: Subspace, tmp_path: Path) -> None:
    both = Pieces(tmp_path / "dirq", space)
    for data in ELEMENTS:
        both.add(data)
    written = [Path(both.path, name, "header") for name in DirectoryQueue(both.path, schema=dict(SCHEMA))]
    expected = [path.read_bytes() for path in written if path.exists()]
    names = [both.queue.add(db, data) for data in ELEMENTS if "header" in data]
    raw = element_queue(space, {"header": "binary"})
    assert [raw.get_element(db, name)["header"] for name in names] == expected


def test_an_element_can_be_moved_there_and_back_and_again(db: Database, both: Pieces) -> None:
    """Under the same names: the records of the first move must not speak for the second."""
    for number in range(3):
        both.add(both.data(number))
    for _ in range(3):
        list(import_from(folder_at(both.path), db, both.queue))
        assert both.queue.count(db) == 3
        list(export_to(both.folder(), db, both.queue))
        assert both.queue.count(db) == 0
    assert list(both.consume()) == [both.data(number) for number in range(3)]


def test_the_reference_goes_on_with_the_folder(db: Database, both: Pieces) -> None:
    both.queue.add(db, both.data(1))
    list(export_to(both.folder(), db, both.queue))
    both.add(both.data(2))
    both.real.purge()
    assert (both.real.count(), list(both.consume())) == (2, [both.data(1), both.data(2)])
    both.add(both.data(3))
    list(import_from(folder_at(both.path), db, both.queue))
    assert contents(db, both.queue) == [both.data(3)]


def test_no_record_stays(db: Database, both: Pieces) -> None:
    both.add(both.data(1))
    list(import_from(folder_at(both.path), db, both.queue))
    list(export_to(both.folder(), db, both.queue))
    keys = both.queue.store.keys
    for records in (keys.arrivals(both.folder().id), keys.departures(both.folder().id)):
        assert list(db.get_range(records.start, records.stop)) == []
    assert os.listdir(Path(both.path, "fdbqueue")) == ["id"]


# -- what stays where it is -----------------------------------------------------------------------------


def test_a_locked_element_stays(db: Database, both: Pieces) -> None:
    names = [both.add(both.data(number)) for number in range(3)]
    assert both.real.lock(names[1])
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(names[1], "it is locked")]
    assert contents(db, both.queue) == [both.data(0), both.data(2)]
    both.real.remove(names[1])
    held = both.queue.first(db)
    both.queue.lock(db, held)
    assert left(export_to(both.folder(), db, both.queue)) == [(held, "it is locked")]
    assert list(both.consume()) == [both.data(2)]
    assert both.queue.count(db) == 1


def test_a_lock_purged_at_the_last_moment_stops_no_move(
    db: Database, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the element was taken out, no other process can lock it."""
    both = Pieces(tmp_path / "dirq", space)
    both.add(both.data(1))
    rename = os.rename

    def purged(source: str, target: str, **directories: int) -> None:
        os.rmdir(f"{source}/locked", dir_fd=directories["src_dir_fd"])
        rename(source, target, **directories)

    monkeypatch.setattr(os, "rename", purged)
    assert left(import_from(folder_at(both.path), db, both.queue)) == []
    assert contents(db, both.queue) == [both.data(1)]


def test_an_entry_that_is_too_large_or_no_element_stays(
    db: Database, both: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PAYLOAD_BYTES_MAX", 1_000)
    small = both.add(both.data(1))
    large = both.add({"body": "x" * 1_000} if isinstance(both.data(1), dict) else b"x" * 1_000)
    odd = Path(both.path, small[:8], "0" * 14)
    odd.mkdir()
    (odd / "not a piece").mkdir()
    moves = dict(left(import_from(folder_at(both.path), db, both.queue)))
    assert moves == {
        large: "it is too large",
        f"{small[:8]}/{'0' * 14}": "its contents are not those of an element",
    }
    assert contents(db, both.queue) == [both.data(1)]
    assert both.real.lock(large), "and unlocked"


def test_a_directory_that_is_no_queue_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        folder_at(tmp_path / "none")
    (tmp_path / "mail").mkdir()
    with pytest.raises(NotADirectoryQueue, match="no directory queue"):
        folder_at(tmp_path)


def test_one_moves_at_a_time(db: Database, both: Pieces) -> None:
    both.add(both.data(1))
    both.add(both.data(2))
    first = import_from(folder_at(both.path), db, both.queue)
    next(first)
    for other in (import_from, export_to):
        with pytest.raises(DirectoryQueueInUse):
            list(other(both.folder(), db, both.queue))
    assert len(list(first)) == 1
    assert both.queue.count(db) == 2


def test_a_name_that_is_taken_becomes_the_next(db: Database, both: Pieces, space: Subspace) -> None:
    both.add(both.data(1))
    other = (
        Pieces(Path(both.path + "2"), space) if type(both) is Pieces else Simple(Path(both.path + "2"), space)
    )
    list(import_from(folder_at(both.path), db, both.queue))
    (name,) = both.queue.names(db)
    twin = both.queue.copy()
    list(export_to(other.folder(), db, both.queue))
    list(import_from(folder_at(other.path), db, twin))
    # Two folders with an element of the same name.
    list(export_to(both.folder(), db, both.queue))
    other.put_by_hand(name, 2)
    for folder in (both, other):
        list(import_from(folder_at(folder.path), db, both.queue))
    first, second = both.queue.names(db)
    assert first == name
    assert second > name
    assert contents(db, both.queue) == [both.data(1), both.data(2)]
    # Export it again, to a directory in which the name is taken.
    other.put_by_hand(name, 3)
    list(export_to(other.folder(), db, both.queue))
    assert sorted(map(str, other.consume())) == sorted(str(both.data(n)) for n in (1, 2, 3))


def test_a_name_taken_at_the_last_moment_becomes_the_next(
    db: Database, both: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process adds to the directory during the export: a look before the rename sees a free name."""
    name = both.queue.add(db, both.data(1))
    both.put_by_hand(name, 2)
    monkeypatch.setattr(folders, "exists", lambda *_: False)
    list(export_to(both.folder(), db, both.queue))
    assert sorted(map(str, both.consume())) == [str(both.data(1)), str(both.data(2))]


@pytest.mark.parametrize("number", [None, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_without_such_a_rename_is_looked_at_first(
    db: Database, both: Pieces, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    """As NFS, and a C library without renameat2."""
    name = both.queue.add(db, both.data(1))
    both.put_by_hand(name, 2)
    if number is None:
        monkeypatch.setattr(folders, "_renameat2", None)
    else:
        monkeypatch.setattr(folders, "_rename", lambda *_: number)
    list(export_to(both.folder(), db, both.queue))
    assert sorted(map(str, both.consume())) == [str(both.data(1)), str(both.data(2))]


def test_a_killed_move_of_another_queue_is_not_ours_to_finish(
    db: Database, both: Pieces, space: Subspace
) -> None:
    both.add(both.data(1))
    with Steps(stop_at=ARRIVED), pytest.raises(Killed):
        list(import_from(folder_at(both.path), db, both.queue))
    other: Any = element_queue(space["other"]) if type(both) is Pieces else simple_queue(space["other"])
    assert list(import_from(folder_at(both.path), db, other)) == []
    list(import_from(folder_at(both.path), db, both.queue))
    assert (both.queue.count(db), other.count(db)) == (1, 0)


# -- killed ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


ARRIVED = "after once"


class Steps:
    """Counts the steps of a mover on the disk and in the database, and stops it before or after one."""

    def __init__(self, stop_at: int | str) -> None:
        self.stop_at = stop_at
        self.count = 0
        self.patch = pytest.MonkeyPatch()

    def __enter__(self) -> "Steps":
        for owner, name in (
            (os, "rename"),
            (os, "mkdir"),
            (os, "link"),
            (os, "utime"),
            (os, "unlink"),
            (os, "rmdir"),
            (folders, "rename_new"),
            (folders, "write_new"),
            (folders, "sync"),
            (moving, "run_once"),
        ):
            self.patch.setattr(owner, name, self._stepped(getattr(owner, name), name))
        return self

    def __exit__(self, *exc: object) -> None:
        self.patch.undo()

    def _stepped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            self._point("before", name)
            answer = function(*args, **options)
            self._point("after", name)
            return answer

        return step

    def _point(self, when: str, name: str) -> None:
        self.count += 1
        # The first thing that a mover does in the database is to look for its mark.
        arrived = f"{when} {name}" == "after run_once" and self.count > 10
        if self.stop_at == self.count or (self.stop_at == ARRIVED and arrived):
            raise Killed


def consume_queue(db: Database, queue: Any) -> Iterator[Any]:
    for name in queue.names(db):
        yield queue.dequeue(db, name)


def as_text(data: Any) -> str:
    return data["body"] if isinstance(data, dict) else data.decode()


@pytest.mark.parametrize("consumers", [False, True], ids=["", "consumers meanwhile"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["in", "out"])
def test_a_move_killed_at_any_step_loses_and_doubles_nothing(
    tmp_path: Path, way: str, layout: str, consumers: bool
) -> None:
    """Consumers take all moved elements between the kill and the new start."""
    with fdbqueue.open("memory:") as db:
        at, stopped = 0, True
        while stopped:
            at += 1
            both = sides(layout, tmp_path / f"{at}", Subspace((at,)))
            stopped = killed_and_restarted(db, both, way, at, consumers)
    assert at > 30, "there are that many steps at least"


def killed_and_restarted(db: Database, both: Pieces, way: str, at: int, consumers: bool) -> bool:
    """True if there is a step of that number. Each element arrives once."""
    for number in range(2):
        if way == "in":
            both.add(both.data(number))
        else:
            both.queue.add(db, both.data(number))

    def move() -> None:
        if way == "in":
            list(import_from(folder_at(both.path), db, both.queue))
        else:
            list(export_to(both.folder(), db, both.queue))

    stopped = False
    with Steps(at):
        try:
            move()
        except Killed:
            stopped = True
    came: list[str] = []
    through = (lambda: consume_queue(db, both.queue)) if way == "in" else both.consume
    if consumers:
        came += map(as_text, through())
    move()
    came += map(as_text, through())
    assert Counter(came) == {"0": 1, "1": 1}, f"killed at step {at}"
    assert both.queue.count(db) == 0
    assert list(both.consume()) == []
    assert os.listdir(Path(both.path, "fdbqueue")) == ["id"]
    return stopped


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_record_of_a_killed_move_decides_for_no_namesake(tmp_path: Path, layout: str) -> None:
    """An import is killed, the element exported again, imported again: under its name, which is recorded."""
    with fdbqueue.open("memory:") as db:
        at, stopped = 0, True
        while stopped:
            at, stopped = at + 1, False
            both = sides(layout, tmp_path / f"{at}", Subspace((at,)))
            both.add(both.data(1))
            with Steps(at):
                try:
                    list(import_from(folder_at(both.path), db, both.queue))
                except Killed:
                    stopped = True
            list(export_to(both.folder(), db, both.queue))
            list(import_from(folder_at(both.path), db, both.queue))
            assert contents(db, both.queue) == [both.data(1)], f"killed at step {at}"
    assert at > 15
