"""Moving elements beside hostile writers and damage: nothing outside is touched, nothing else is stopped."""

import os
from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import InvalidSchema, NoNameAtThatTime, UnsafePath
from fdbqueue.queues.elements.folder import Folder, folder_at
from fdbqueue.queues.elements.moving import export_to, import_from
from fdbqueue.queues.elements.queue import ElementQueue
from fdbqueue.queues.elements.store import FOLDER_BYTES, NAMELESS, payload_of
from tests.elements.support import element_queue
from tests.elements.test_dirq import LAYOUTS, Pieces, contents, left, sides
from tests.support import NOBODY, ManualClock, needs_root

NAME = "5f000000/5f00000000000a"
NO_ELEMENT = "its contents are not those of an element"
SECRET = b"secret" * 4


@pytest.fixture(params=LAYOUTS)
def both(request: pytest.FixtureRequest, tmp_path: Path, space: Subspace) -> Pieces:
    return sides(request.param, tmp_path / "dirq", space)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file that has nothing to do with the queue."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


def exchange(place: Path, both: Pieces, secret: Path) -> None:
    """Have the element at `place` lead to `secret`."""
    if type(both) is Pieces:
        (place / "body").unlink()
        (place / "body").symlink_to(secret)
    else:
        place.unlink()
        place.symlink_to(secret)


@pytest.mark.parametrize("way", ["import", "export"])
def test_our_place_in_the_folder_may_be_no_link(db: Database, both: Pieces, tmp_path: Path, way: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    Path(both.path, "fdbqueue").symlink_to(tmp_path / "elsewhere")
    move = import_from if way == "import" else export_to
    with pytest.raises(UnsafePath, match="no directory"):
        list(move(both.folder(), db, both.queue))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_the_identity_of_a_folder_is_a_regular_file(
    db: Database, both: Pieces, secret: Path, kind: str
) -> None:
    identity = Path(both.path, "fdbqueue", "id")
    identity.parent.mkdir()
    if kind == "link":
        identity.symlink_to(secret)
    elif kind == "pipe":
        os.mkfifo(identity)
    else:
        identity.mkdir()
    with pytest.raises(UnsafePath, match="id is no regular file"):
        list(import_from(both.folder(), db, both.queue))
    assert secret.read_bytes() == SECRET


@pytest.mark.parametrize("size_bytes", [0, FOLDER_BYTES - 1, FOLDER_BYTES + 1])
def test_an_identity_of_a_wrong_length_is_made_anew_once(db: Database, both: Pieces, size_bytes: int) -> None:
    """Its maker was killed, or another program wrote there."""
    folder = both.folder()
    place = Path(both.path, "fdbqueue", "id")
    place.parent.mkdir()
    place.write_bytes(b"x" * size_bytes)
    found = list[bytes]()
    for _ in range(2):
        list(export_to(folder, db, both.queue))
        found.append(place.read_bytes())
    assert found == [folder.id] * 2
    assert len(folder.id) == FOLDER_BYTES


@needs_root
def test_our_place_in_the_folder_belongs_to_us(db: Database, both: Pieces) -> None:
    """The user that made it could exchange its files."""
    area = Path(both.path, "fdbqueue")
    area.mkdir()
    os.chown(area, NOBODY, NOBODY)
    with pytest.raises(UnsafePath, match=f"belongs to user {NOBODY}"):
        list(import_from(both.folder(), db, both.queue))


def test_our_place_in_the_folder_becomes_private(db: Database, both: Pieces) -> None:
    """Releases before left it to the umask."""
    area = Path(both.path, "fdbqueue")
    area.mkdir()
    area.chmod(0o777)
    list(import_from(both.folder(), db, both.queue))
    assert area.stat().st_mode & 0o777 == 0o700


def test_an_element_that_is_exchanged_for_a_link_is_put_back(
    db: Database, both: Pieces, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at it and its taking out; the others come in, and it can be mended and imported."""
    first, second = both.add(both.data(1)), both.add(both.data(2))
    problem = Folder.problem

    def exchanged(folder: Folder, name: str) -> str:
        found = problem(folder, name)
        if name == first:
            exchange(Path(both.path, name), both, secret)
        return found

    monkeypatch.setattr(Folder, "problem", exchanged)
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(first, NO_ELEMENT)]
    monkeypatch.undo()
    assert list(both.queue.names(db)) == [second]
    assert contents(db, both.queue) == [both.data(2)]
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(first, NO_ELEMENT)]
    assert secret.read_bytes() == SECRET
    assert both.real.lock(first), "and it is not locked"


@pytest.mark.timeout(60)
def test_an_element_that_changes_after_its_take_is_put_back(
    db: Database, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its maker may still have its directory open. Reading a pipe would never end."""
    both = Pieces(tmp_path / "dirq", space)
    name = both.add(both.data(1))
    read = Folder._require_element

    def changed(folder: Folder, place: str, at: int) -> None:
        read(folder, place, at)
        if place.startswith("in-"):
            os.unlink(f"{place}/body", dir_fd=at)
            os.mkfifo(f"{place}/body", dir_fd=at)

    monkeypatch.setattr(Folder, "_require_element", changed)
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(name, NO_ELEMENT)]
    assert both.queue.count(db) == 0
    assert Path(both.path, name, "body").is_fifo()


def test_an_element_that_grows_after_its_take_is_put_back(
    db: Database, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its pieces would have room alone. The elements behind it come in."""
    monkeypatch.setattr(limits, "PAYLOAD_BYTES_MAX", 1_000)
    both = Pieces(tmp_path / "dirq", space)
    large, _ = both.add({"body": "1", "blob": b"2"}), both.add(both.data(3))
    look = Folder._require_element

    def grown(folder: Folder, place: str, at: int) -> None:
        look(folder, place, at)
        if place == folder._coming(large):
            for piece in ("body", "blob"):
                Path(both.path, "fdbqueue", place, piece).write_bytes(b"x" * 900)

    monkeypatch.setattr(Folder, "_require_element", grown)
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(large, "it is too large")]
    assert contents(db, both.queue) == [both.data(3)]
    assert both.real.lock(large), "and it is not locked"


def test_an_element_without_a_way_back_stops_no_other(
    db: Database, space: Subspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file has come in the place of its directory, after it was taken."""
    both = Pieces(tmp_path / "dirq", space)
    both.put_by_hand(NAME, 1)
    both.put_by_hand("5f000001/5f00000100000a", 2)
    look, minute = Folder._require_element, Path(both.path, NAME).parent

    def changed(folder: Folder, place: str, at: int) -> None:
        look(folder, place, at)
        if place == folder._coming(NAME):
            os.unlink(f"{place}/body", dir_fd=at)
            os.mkfifo(f"{place}/body", dir_fd=at)
            minute.rmdir()
            minute.touch()

    monkeypatch.setattr(Folder, "_require_element", changed)
    [(name, reason)] = left(import_from(folder_at(both.path), db, both.queue))
    assert name == NAME
    assert reason.startswith(NO_ELEMENT)
    assert "cannot be put back" in reason
    assert contents(db, both.queue) == [both.data(2)]
    monkeypatch.undo()
    minute.unlink()
    assert set(left(import_from(folder_at(both.path), db, both.queue))) == {(NAME, NO_ELEMENT)}
    assert Path(both.path, NAME, "body").is_fifo()


@needs_root
def test_an_element_replaced_during_its_export_stays(
    db: Database, both: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer takes it, and an import brings another one of that name."""
    name, folder = both.queue.add(db, both.data(1)), both.folder()
    piece, prepare = "body" if type(both) is Pieces else NAMELESS, folder.prepare

    def replaced(*args: Any) -> None:
        prepare(*args)
        both.queue.dequeue(db, name)
        run(db, lambda tr: both.queue.store.add(tr, name, payload_of({piece: b"2"})))

    monkeypatch.setattr(folder, "prepare", replaced)
    assert left(export_to(folder, db, both.queue)) == [(name, "it was locked meanwhile")]
    assert contents(db, both.queue) == [both.data(2)]
    assert list(both.consume()) == []
    assert os.listdir(Path(both.path, "fdbqueue")) == ["id"]


@pytest.fixture
def simple(tmp_path: Path, space: Subspace) -> Pieces:
    return sides("simple", tmp_path / "dirq", space)


def test_an_element_gone_at_the_last_moment_leaves_no_lock(
    db: Database, simple: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock without an element would lock the next one of that name."""
    name, link = simple.add(simple.data(1)), os.link

    def late(*args: Any, **options: Any) -> None:
        Path(simple.path, name).unlink()
        link(*args, **options)

    monkeypatch.setattr(os, "link", late)
    assert left(import_from(simple.folder(), db, simple.queue)) == [(name, "it is locked")]
    assert os.listdir(Path(simple.path, name[:8])) == []


def test_the_lock_of_an_import_is_young_for_a_purge(
    db: Database, simple: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a link to an old file, and without it a consumer would take the element, too."""
    list(import_from(simple.folder(), db, simple.queue))
    os.utime(Path(simple.path, "fdbqueue", "id"), (0, 0))
    name, link, locks = simple.add(simple.data(1)), os.link, list[bool]()

    def purged(*args: Any, **options: Any) -> None:
        link(*args, **options)
        simple.real.purge(maxlock=600)
        locks.append(Path(simple.path, name + ".lck").exists())

    monkeypatch.setattr(os, "link", purged)
    assert left(import_from(simple.folder(), db, simple.queue)) == []
    assert locks == [True]


def test_a_second_name_of_another_users_file_is_no_element(db: Database, both: Pieces, secret: Path) -> None:
    """On a system on which any user may make hard links."""
    name = both.add(both.data(1))
    os.chown(both.path, NOBODY, NOBODY)
    place = Path(both.path, name, "body") if type(both) is Pieces else Path(both.path, name)
    place.unlink()
    os.link(secret, place)
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(name, NO_ELEMENT)]
    assert both.queue.count(db) == 0


def test_a_strange_name_in_our_directory_is_no_element(
    db: Database, both: Pieces, monkeypatch: pytest.MonkeyPatch, secret: Path
) -> None:
    both.add(both.data(1))
    taken = Folder.taken

    def planted(folder: Folder) -> list[str]:
        mark = folder._mark.hex()
        for name in ("evil", "..-..", NAME.replace("/", "-") + "x"):
            os.symlink(secret, f"in-{mark}-{name}", dir_fd=folder._area)
        os.symlink(secret, f"in-{mark}-{NAME.replace('/', '-')}", dir_fd=folder._area)
        return taken(folder)

    monkeypatch.setattr(Folder, "taken", planted)
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(NAME, NO_ELEMENT), (NAME, NO_ELEMENT)]
    assert contents(db, both.queue) == [both.data(1)]
    assert Path(both.path, NAME).is_symlink()


def test_a_link_for_a_directory_of_elements_is_not_followed(
    db: Database, both: Pieces, tmp_path: Path
) -> None:
    """A link is followed neither by an import nor by an export."""
    (tmp_path / "elsewhere").mkdir()
    name = both.queue.add(db, both.data(1))
    Path(both.path, name[:8]).symlink_to(tmp_path / "elsewhere")
    assert left(export_to(both.folder(), db, both.queue)) == [(name, f"{name[:8]} is no directory there")]
    assert both.queue.count(db) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []
    (tmp_path / "elsewhere" / name[9:]).write_bytes(SECRET)
    assert list(import_from(both.folder(), db, both.queue)) == []


def test_a_directory_that_becomes_a_link_loses_no_element(
    db: Database, both: Pieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its preparation and its appearance: the next export finishes the move."""
    (tmp_path / "elsewhere").mkdir()
    name = both.queue.add(db, both.data(1))
    place, publish = Path(both.path, name[:8]), Folder.publish

    def exchanged(folder: Folder, name: str) -> None:
        place.rmdir()
        place.symlink_to(tmp_path / "elsewhere")
        publish(folder, name)

    monkeypatch.setattr(Folder, "publish", exchanged)
    with pytest.raises(NotADirectoryError):
        list(export_to(both.folder(), db, both.queue))
    monkeypatch.undo()
    place.unlink()
    list(export_to(both.folder(), db, both.queue))
    assert list(both.consume()) == [both.data(1)]


def test_a_lock_that_is_a_link_to_a_sticky_directory_is_not_ours(
    db: Database, space: Subspace, tmp_path: Path
) -> None:
    """It was taken for one, and stopped every import from then on."""
    both = Pieces(tmp_path / "dirq", space)
    name = both.add(both.data(1))
    (tmp_path / "sticky").mkdir()
    (tmp_path / "sticky").chmod(0o1777)
    (Path(both.path) / name / "locked").symlink_to(tmp_path / "sticky")
    both.add(both.data(2))
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(name, "it is locked")]
    assert contents(db, both.queue) == [both.data(2)]


@needs_root
def test_a_sticky_lock_of_another_user_is_not_ours(db: Database, space: Subspace, tmp_path: Path) -> None:
    both = Pieces(tmp_path / "dirq", space)
    name = both.add(both.data(1))
    lock = Path(both.path, name, "locked")
    lock.mkdir()
    lock.chmod(0o1777)
    os.chown(lock, NOBODY, NOBODY)
    assert left(import_from(folder_at(both.path), db, both.queue)) == [(name, "it is locked")]


@pytest.mark.commits_by_hand
@pytest.mark.parametrize("name", ["../escaped/file", "etc/passwd", "x", "5f000000/../../escaped"])
def test_a_name_in_the_database_is_no_path(db: Database, both: Pieces, tmp_path: Path, name: str) -> None:
    """Writers of the key space are trusted, but a malformed name is not used as a path."""
    before = sorted(tmp_path.rglob("*"))
    run(db, lambda tr: both.queue.store.add(tr, name, payload(both)))
    assert left(export_to(both.folder(), db, both.queue)) == [(name, "its name is not that of an element")]
    assert sorted(set(tmp_path.rglob("*")) - set(before)) == [
        Path(both.path, "fdbqueue"),
        Path(both.path, "fdbqueue", "id"),
    ]


def payload(both: Pieces) -> bytes:
    return payload_of({"body": b"1"} if type(both) is Pieces else {NAMELESS: b"1"})


# -- pieces and names that a directory queue cannot have ------------------------------------------------


@pytest.mark.parametrize("piece", ["locked", "x" * 256])
def test_a_piece_that_could_be_no_file_is_refused(space: Subspace, piece: str) -> None:
    with pytest.raises(InvalidSchema):
        ElementQueue(space, schema={"body": "string", piece: "string?"})
    ElementQueue(space, schema={"x" * 255: "string"})


@pytest.mark.parametrize("piece", ["locked", "x" * 256, "../x"])
def test_a_stored_piece_that_could_be_no_file_stays(
    db: Database, space: Subspace, tmp_path: Path, piece: str
) -> None:
    """Another program has stored it; the elements behind it go out."""
    both = Pieces(tmp_path / "dirq", space)
    run(db, lambda tr: both.queue.store.add(tr, NAME, payload_of({"body": b"1", piece: b"2"})))
    both.queue.add(db, both.data(2))
    ((name, reason),) = left(export_to(both.folder(), db, both.queue))
    assert name == NAME
    assert reason.startswith("no file can have the name of its piece")
    assert list(both.consume()) == [both.data(2)]


@pytest.mark.parametrize("seconds", [2.0**32, 1.7e9 + 100 * 365 * 86_400])
def test_a_clock_that_no_name_can_tell_adds_nothing(
    monkeypatch: pytest.MonkeyPatch, space: Subspace, seconds: float
) -> None:
    """With the clock set right, the same object goes on."""
    clock = ManualClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        queue = element_queue(space)
        monkeypatch.setattr(clock, "now", lambda: seconds)
        with pytest.raises(NoNameAtThatTime, match="Set the clock"):
            queue.add(db, {"body": "x"})
        assert queue.count(db) == 0
        monkeypatch.setattr(clock, "now", lambda: 1.7e9)
        name = queue.add(db, {"body": "x"})
        assert queue.dequeue(db, name) == {"body": "x"}


@needs_root
def test_what_root_exports_belongs_to_the_owner_of_the_folder(db: Database, both: Pieces) -> None:
    """Otherwise the consumers of that user could neither lock nor remove it."""
    os.chown(both.path, NOBODY, NOBODY)
    name = both.queue.add(db, both.data(1))
    list(export_to(both.folder(), db, both.queue))
    place = Path(both.path, name)
    assert {os.lstat(each).st_uid for each in (place.parent, place, *place.rglob("*"))} == {NOBODY}


# Damage on the way.


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
