"""elements.md, section 7: the differences of a simple element queue."""

from pathlib import Path
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

from fdbqueue import Database, SimpleElementQueue
from fdbqueue.core import limits
from fdbqueue.core.errors import (
    InvalidArgument,
    PayloadTooLarge,
    QueueError,
    QueueLockError,
    QueueNotFound,
    UnreadableElement,
)
from tests.elements.support import MALFORMED, NOBODY, element_queue, simple_queue
from tests.support import CANCELLED, error_code


@pytest.fixture
def q(space: Subspace) -> SimpleElementQueue:
    return simple_queue(space)


def get(db: Database, q: SimpleElementQueue, name: str) -> bytes:
    assert q.lock(db, name)
    data = q.get(db, name)
    q.unlock(db, name)
    return data


def test_get_is_always_bytes(db: Database, q: SimpleElementQueue) -> None:
    for data, found in (
        ("héllo", b"h\xc3\xa9llo"),
        (b"\x00\xff", b"\x00\xff"),
        ("", b""),
        (b"", b""),
        (b"x" * 200_000, b"x" * 200_000),
    ):
        assert get(db, q, q.add(db, data)) == found


@pytest.mark.parametrize("data", [None, 1, ["x"], bytearray(b"x"), {"body": "x"}])
def test_other_data_is_a_type_error(db: Database, q: SimpleElementQueue, data: Any) -> None:
    with pytest.raises(TypeError):
        q.add(db, data)
    assert q.count(db) == 0


def test_aliases(db: Database, q: SimpleElementQueue) -> None:
    name = q.add_ref(db, "x")
    q.lock(db, name)
    assert q.get_ref(db, name) == b"x"
    q.remove(db, name)
    assert q.dequeue(db, q.enqueue(db, "y")) == b"y"
    name = q.add(db, "z")
    assert q.get_element(db, name) == b"z"
    assert q.lock(db, name)
    with pytest.raises(QueueLockError):
        q.dequeue(db, name)


def test_misuse_is_both_errors(db: Database, q: SimpleElementQueue) -> None:
    name = q.add(db, "x")
    for verb in (q.get, q.remove, q.unlock):
        for unlocked_or_gone in (name, NOBODY, "foo"):
            with pytest.raises(FileNotFoundError) as raised:
                verb(db, unlocked_or_gone)
            assert isinstance(raised.value, QueueError)
    q.lock(db, name)
    for locked_or_gone in (name, NOBODY, "foo"):
        with pytest.raises(OSError, match="cannot lock"):
            q.lock(db, locked_or_gone, permissive=False)
    assert q.unlock(db, NOBODY, permissive=True) is False


@pytest.mark.parametrize("name", [*MALFORMED, None, 5])
def test_malformed_names_are_of_nothing(db: Database, q: SimpleElementQueue, name: Any) -> None:
    q.lock(db, q.add(db, "x"))
    assert q.lock(db, name) is False
    assert q.acquire(db, name) is None
    assert q.unlock(db, name, permissive=True) is False
    for verb in (q.get, q.remove, q.touch):
        with pytest.raises(OSError, match="cannot"):
            verb(db, name)
    assert q.count(db) == 1


def test_the_first_half_of_a_name_is_the_second_rounded_down(db: Database, space: Subspace) -> None:
    for granularity, step in ((60, 60), (0, 1), (1, 1), (3600, 3600)):
        name = simple_queue(space, granularity=granularity).add(db, "x")
        second = int(name[9:17], 16)
        assert int(name[:8], 16) == second - second % step
    with pytest.raises(TypeError, match="granularity"):
        simple_queue(space, granularity="60")


def test_add_path_moves_the_file_in(db: Database, q: SimpleElementQueue, tmp_path: Path) -> None:
    for path in (tmp_path / "one", str(tmp_path / "two")):
        Path(path).write_bytes(b"\x00data")
        name = q.add_path(db, path)
        assert not Path(path).exists()
        assert q.dequeue(db, name) == b"\x00data"
    with pytest.raises(FileNotFoundError):
        q.add_path(db, tmp_path / "none")
    assert q.count(db) == 0


def test_add_path_keeps_the_file_that_it_cannot_add(
    db: Database, q: SimpleElementQueue, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(limits.PAYLOAD_BYTES_MAX))
    with pytest.raises(PayloadTooLarge):
        q.add_path(db, path)
    with pytest.raises(InvalidArgument, match="a database"):
        q.add_path(db.create_transaction(), path)
    assert path.exists()
    assert q.count(db) == 0


def test_there_is_no_path_to_get(db: Database, q: SimpleElementQueue) -> None:
    with pytest.raises(NotImplementedError, match="unsupported method: get_path"):
        q.get_path(db, q.add(db, "x"))


def test_a_pass_goes_on_after_an_error(
    db: Database, q: SimpleElementQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "NAMES_READ_FIRST", 1)
    names = [q.add(db, str(number)) for number in range(3)]
    found = [q.first(db)]
    cancelled = db.create_transaction()
    cancelled.cancel()
    assert error_code(lambda: q.next(cancelled)) == CANCELLED
    assert [*found, *(q.next(db) for _ in range(3))] == [*names, ""]


def test_a_refused_purge_ends_no_pass(db: Database, q: SimpleElementQueue) -> None:
    names = [q.add(db, str(number)) for number in range(2)]
    assert q.first(db) == names[0]
    with pytest.raises(InvalidArgument):
        q.purge(db, maxlock=-1)
    assert q.next(db) == names[1]


def test_each_kind_of_queue_reads_its_own_elements(db: Database, space: Subspace) -> None:
    name = element_queue(space).add(db, {"body": "x"})
    with pytest.raises(UnreadableElement):
        simple_queue(space, "queue").get_element(db, name)


def test_named(db: Database, space: Subspace) -> None:
    with pytest.raises(QueueNotFound):
        SimpleElementQueue.named(db, "simple", create=False, root=space["root"])
    name = SimpleElementQueue.named(db, "simple", root=space["root"]).add(db, "x")
    assert SimpleElementQueue.named(db, "simple", create=False, root=space["root"]).dequeue(db, name) == b"x"
