"""An unsafe directory is refused before any file in it is touched."""

import os
import socket
import stat
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core.errors import InvalidArgument, StorageInUse, UnsafePath
from tests.support import NOBODY, needs_root, run_program

NAMES = ["data.mdb", "lock.mdb", "commits.1", "doorbells/board"]
DAMAGE = b"precious" * 10


def mode_of(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def open_and_close(path: Path, **options: bool) -> None:
    with fdbqueue.open(f"embedded:{path}", **options) as db:
        db[b"a"] = b"1"


def prepared(path: Path, name: str) -> Path:
    """Return the path of that file, in an empty directory."""
    place = path / name
    place.parent.mkdir(mode=0o700, parents=True)
    return place


def test_a_directory_that_is_open_keeps_no_second_descriptor(tmp_path):
    """A service may open its database for each request."""
    with fdbqueue.open(f"embedded:{tmp_path / 'data'}") as db:
        db[b"a"] = b"1"
        before = set(os.listdir("/proc/self/fd"))
        open_and_close(tmp_path / "data")
        assert set(os.listdir("/proc/self/fd")) == before


# -- names in the directory -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_link_in_the_directory_is_not_followed(tmp_path, name):
    """The owner of the link does not matter: the file that it names may belong to another program."""
    victim = tmp_path / "victim"
    victim.write_bytes(DAMAGE)
    prepared(tmp_path / "data", name).symlink_to(victim)
    with pytest.raises(UnsafePath, match=f"{Path(name).name} is no regular file"):
        open_and_close(tmp_path / "data")
    assert victim.read_bytes() == DAMAGE


def test_a_link_in_place_of_doorbells_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    prepared(tmp_path / "data", "doorbells").symlink_to(tmp_path / "other")
    with pytest.raises(UnsafePath, match="doorbells is no directory"):
        open_and_close(tmp_path / "data")
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["pipe", "socket", "directory"])
def test_only_regular_files_are_opened(tmp_path, monkeypatch, name, kind):
    """Opening a pipe would wait for ever."""
    place = prepared(tmp_path / "data", name)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            monkeypatch.chdir(place.parent)
            listening.bind(place.name)
    else:
        place.mkdir()
    with pytest.raises(UnsafePath, match="no regular file"):
        open_and_close(tmp_path / "data")


# -- the owner of the directory --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused(tmp_path, mode):
    """The error names the cure, and no file was touched."""
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(UnsafePath, match=r"chmod go-w .* or give --shared-directory") as refused:
        open_and_close(path)
    assert isinstance(refused.value, StorageInUse)
    assert list(path.iterdir()) == []


@pytest.mark.parametrize(("mode", "files"), [(0o2770, 0o660), (0o777, 0o666), (0o750, 0o640)])
def test_the_files_of_a_shared_directory_have_its_permissions(tmp_path, mode, files):
    """If the group may use the directory, it may use the files."""
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(mode)
    umask = os.umask(0o077)
    try:
        with fdbqueue.open(f"embedded:{path}", shared_directory=True) as db:
            tr = db.create_transaction()
            watch = tr.watch(b"a")
            tr.commit().wait()
            assert {mode_of(file) for file in path.iterdir() if not file.is_dir()} == {files}
            assert mode_of(path / "doorbells") == mode
            assert {mode_of(file) for file in (path / "doorbells").iterdir()} == {files}
            del watch
    finally:
        os.umask(umask)


def test_a_url_may_say_that_a_directory_is_shared(tmp_path):
    """Some programs are given a URL only: a fleet, or by $FDBQUEUE_URL."""
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(0o777)
    with fdbqueue.open(f"embedded+shared:{path}") as db:
        db[b"a"] = b"1"
    with fdbqueue.open(f"embedded+shared:{path}", shared_directory=True) as db:
        assert db[b"a"] == b"1"


@pytest.mark.parametrize("url", ["memory:", "fdb:", "fdb:/etc/fdb.cluster", "redis:x"])
def test_only_a_directory_can_be_shared(url):
    with pytest.raises(InvalidArgument, match="shared_directory"):
        fdbqueue.open(url, shared_directory=True)


@pytest.mark.parametrize("umask", [0, 0o022, 0o277])
def test_every_level_that_is_made_is_private(tmp_path, umask):
    before = os.umask(umask)
    try:
        open_and_close(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / place) for place in ("a", "a/b", "a/b/c")] == [0o700] * 3


def test_a_link_on_the_way_that_the_caller_made_is_followed(tmp_path):
    """Several links are followed too, relative and absolute ones, and one as the last part."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "one").symlink_to("disk")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    (tmp_path / "last").symlink_to("two/data")
    open_and_close(tmp_path / "two" / "data")
    with fdbqueue.open(f"embedded:{tmp_path}/last/../data/.") as db:
        assert db[b"a"] == b"1"
    assert (tmp_path / "disk" / "data" / "data.mdb").exists()


def test_links_that_lead_to_each_other_are_refused(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(StorageInUse, match="symbolic links"):
        open_and_close(tmp_path / "a" / "data")


def test_a_path_of_thousands_of_parts_is_opened(tmp_path):
    """The walk is not recursive, and never passes the whole path to the system."""
    depth = 1_500
    open_and_close(Path(str(tmp_path) + "/." * depth + "/data"))
    assert (tmp_path / "data" / "data.mdb").exists()


# -- two users ------------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("last", [False, True])
def test_a_link_on_the_way_that_another_user_made_is_refused(tmp_path, last):
    (tmp_path / "mine").mkdir()
    link = tmp_path / "link"
    link.symlink_to("mine")
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(UnsafePath, match=f"made by user {NOBODY}"):
        open_and_close(link if last else link / "data")
    assert list((tmp_path / "mine").iterdir()) == []


AS_NOBODY = """
    import os
    import fdbqueue

    fdbqueue.open("memory:").close()  # imports all that another user may not be able to read

    def be_nobody():
        os.setgroups([])
        os.setegid(65534)
        os.seteuid(65534)
"""


@needs_root
def test_roots_files_in_a_users_directory_belong_to_the_user(tmp_path):
    """So the user can go on using the directory."""
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    os.chown(path, NOBODY, NOBODY)
    with fdbqueue.open(f"embedded:{path}") as db:
        tr = db.create_transaction()
        watch = tr.watch(b"a")
        tr.commit().wait()
        files = [*path.rglob("*")]
        assert len(files) >= 6
        assert {os.lstat(file).st_uid for file in files} == {NOBODY}
        printed = run_program(
            tmp_path,
            AS_NOBODY
            + f"""
    os.chdir({str(path)!r})  # the directories above it stay closed to the user
    be_nobody()
    with fdbqueue.open("embedded:.") as db:
        db[b"a"] = b"1"
        print(db[b"a"])
            """,
        )
        watch.wait()
    assert printed == "b'1'\n"


@needs_root
def test_only_root_may_open_another_users_directory(tmp_path):
    """Its owner can replace its files."""
    path = tmp_path / "data"
    path.mkdir(mode=0o755)
    os.chown(path, NOBODY - 1, NOBODY)
    printed = run_program(
        tmp_path,
        AS_NOBODY
        + f"""
    os.chdir({str(path)!r})
    be_nobody()
    try:
        fdbqueue.open("embedded:.")
    except fdbqueue.FdbQueueError as error:
        print(type(error).__name__, error)
        """,
    )
    assert printed.startswith(f"UnsafePath . is not opened: it belongs to user {NOBODY - 1}")
