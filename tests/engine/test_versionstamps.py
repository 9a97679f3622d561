"""Versionstamps: completed at commit, unique, and in commit order."""

import pytest

from tests.support import (
    CANCELLED,
    INVALID_OPERATION,
    NO_COMMIT_VERSION,
    NOT_COMMITTED,
    becomes_ready,
    begin,
    commit_code,
    error_code,
)

PLACEHOLDER = b"\xff" * 10


def offset(position):
    """Return the four bytes after a key or value that are the offset of the versionstamp."""
    return position.to_bytes(4, "little")


def test_a_stamp_replaces_ten_bytes_of_keys_and_values(db, k):
    """It is the commit version, big endian, and a number within it. The offset itself is not stored."""
    tr = db.create_transaction()
    tr.set_versionstamped_key(k(b"<" + PLACEHOLDER + b">") + offset(len(k("<"))), b"value")
    for name in ("a", "b"):
        tr.set_versionstamped_value(k(name), b"<" + PLACEHOLDER + b">" + offset(1))
    stamp = tr.get_versionstamp()
    assert not stamp.is_ready()
    tr.commit().wait()
    assert becomes_ready(stamp)
    told = b"<" + stamp.value + b">"
    assert len(stamp.value) == 10
    assert int.from_bytes(stamp.value[:8], "big") == tr.get_committed_version()
    rows = [(row.key, row.value) for row in db.get_range(k.begin, k.end)]
    assert rows == [(k(told), b"value"), (k("a"), told), (k("b"), told)]


@pytest.mark.parametrize(
    ("end", "code"),
    [(lambda tr: tr.commit().wait(), NO_COMMIT_VERSION), (lambda tr: tr.cancel(), CANCELLED)],
    ids=["read-only", "cancelled"],
)
def test_without_a_commit_of_writes_there_is_no_stamp(db, end, code):
    tr = begin(db)
    stamp = tr.get_versionstamp()
    end(tr)
    assert error_code(lambda: stamp.wait()) == code


def test_each_attempt_has_a_versionstamp_of_its_own(db, k):
    """The future of an attempt that came to nothing fails, and that of the next one is another."""
    tr = begin(db)
    lost = tr.get_versionstamp()
    tr.on_error(NOT_COMMITTED).wait()
    stamp = tr.get_versionstamp()
    tr.set_versionstamped_value(k("a"), PLACEHOLDER + offset(0))
    tr.commit().wait()
    assert db[k("a")] == stamp.value
    assert error_code(lambda: lost.wait()) != 0


def test_a_refused_commit_ends_the_wait_for_its_versionstamp(db, k):
    """No later attempt gives it a stamp."""
    tr = begin(db)
    tr[k("a")].wait()
    tr[k("b")] = b"1"
    stamp = tr.get_versionstamp()
    db[k("a")] = b"other"
    assert commit_code(tr) == NOT_COMMITTED
    is_ready = becomes_ready(stamp)  # pytest would show the stamp of a failed assertion, and wait for it
    assert is_ready
    assert error_code(lambda: stamp.wait()) != 0


@pytest.mark.parametrize(("read_end", "code"), [(b"\xff", NOT_COMMITTED), (b"\x00", 0)])
def test_versionstamped_keys_conflict_where_they_land(db, k, read_end, code):
    """A read of the key that the stamp completes conflicts; a read beside it does not."""
    tr = begin(db)
    tr.get_range(k("s"), k(b"s" + read_end)).to_list()
    writer = db.create_transaction()
    writer.set_versionstamped_key(k(b"s" + PLACEHOLDER) + offset(len(k("s"))), b"")
    writer.commit().wait()
    tr[k("out")] = b"1"
    assert commit_code(tr) == code


def test_versionstamped_writes_never_conflict(db, k):
    """They read nothing."""
    tr = begin(db)
    tr.set_versionstamped_value(k("a"), PLACEHOLDER + offset(0))
    db[k("a")] = b"other"
    assert commit_code(tr) == 0
    assert db[k("a")] != b"other"


@pytest.mark.parametrize(
    "value",
    [b"", b"\x00\x00\x00", PLACEHOLDER + offset(1), PLACEHOLDER + b"\xff\xff\xff\xff", b"123" + offset(0)],
)
def test_a_stamp_must_fit_into_its_value(db, k, value):
    """Ten bytes from the offset must be inside."""
    tr = db.create_transaction()
    tr.set_versionstamped_value(k("a"), value)
    assert commit_code(tr) == INVALID_OPERATION


@pytest.mark.parametrize("place", [lambda _: b"\xff\xff\xff\xff", lambda k: offset(len(k.prefix) + 1)])
def test_a_stamp_must_fit_into_its_key(db, k, place):
    for key in (b"\x00", k(PLACEHOLDER) + place(k)):
        tr = db.create_transaction()
        tr.set_versionstamped_key(key, b"value")
        assert commit_code(tr) == INVALID_OPERATION
