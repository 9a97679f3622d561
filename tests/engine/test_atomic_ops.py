"""Every atomic operation, on present and absent keys, against a plain transcription (writes.py)."""

import pytest

from tests.support import INVALID_MUTATION_TYPE, commit_code, error_code
from tests.system.plain_engine import OPERATIONS

OLD_VALUES = [
    None,
    b"",
    b"\x00",
    b"\x01",
    b"\xff",
    b"\x02\x01",
    b"\xff\xff",
    b"\x00\x00\x01",
    b"abc",
    b"\x01\x00\x00\x00",
]
OPERANDS = [
    b"",
    b"\x00",
    b"\x01",
    b"\xff",
    b"\x01\x02",
    b"\x00\x01",
    b"\xff\xff\xff",
    b"abc",
    b"\x01\x00\x00\x00\x00",
]


@pytest.mark.parametrize("is_own", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_does_what_its_documentation_says(db, k, name, is_own):
    """On a stored value, or on an own write, and read before and after the commit."""
    pairs = {k(f"{old!r} {operand!r}"): (old, operand) for old in OLD_VALUES for operand in OPERANDS}
    tr = db.create_transaction()
    for key, (old, _) in pairs.items():
        if old is None:
            del tr[key]
        else:
            tr[key] = old
    if not is_own:
        tr.commit().wait()
        tr = db.create_transaction()
    for key, (_, operand) in pairs.items():
        getattr(tr, name)(key, operand)
    expected = {key: OPERATIONS[name](*pair) for key, pair in pairs.items()}
    assert {key: tr[key].value for key in pairs} == expected
    tr.commit().wait()
    reader = db.create_transaction()
    assert {key: reader[key].value for key in pairs} == expected


def test_append_stops_at_the_value_limit(db, k):
    db[k("a")] = b"x" * 99_999
    db.append_if_fits(k("a"), b"yy")
    assert len(db[k("a")]) == 99_999
    db.append_if_fits(k("a"), b"y")
    assert db[k("a")] == b"x" * 99_999 + b"y"


def test_concurrent_operations_all_count(db, k):
    writers = [db.create_transaction() for _ in range(10)]
    for tr in writers:
        tr.get_read_version().wait()
        tr.add(k("a"), b"\x01\x00")
    assert [commit_code(tr) for tr in writers] == [0] * 10
    assert db[k("a")] == b"\x0a\x00"


def test_operations_have_two_names_and_take_read_values(db, k):
    """`and`, `or` and `xor` have a spelling that Python can say. `db.add(...)` and others commit at once."""
    db.add(k("a"), b"\x06")
    db.bit_or(k("one"), b"\x01")
    tr = db.create_transaction()
    getattr(tr, "and")(k("a"), b"\x03")
    getattr(tr, "or")(k("a"), b"\x08")
    tr.xor(k("a"), tr[k("one")])
    assert tr[k("a")] == b"\x0b"


@pytest.mark.parametrize("code", [3, 200])
def test_an_unknown_operation_is_refused(db, k, code):
    tr = db.create_transaction()
    tr._atomic_operation(code, k("a"), b"\x01")
    assert error_code(lambda: tr[k("a")].wait()) == INVALID_MUTATION_TYPE
