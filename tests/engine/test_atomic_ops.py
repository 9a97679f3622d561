"""Every atomic operation, on present and absent keys, against a plain transcription (writes.py)."""

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import INVALID_MUTATION_TYPE, commit_code, error_code
from tests.system.plain_operations import OPERATIONS

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


def label(old, operand):
    return f"{old!r} {operand!r}".encode()


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_does_what_its_documentation_says(db, k, name):
    """The committed value and the value read before the commit are right, for each old value and operand."""
    pairs = list(itertools.product(OLD_VALUES, OPERANDS))
    tr = db.create_transaction()
    for old, operand in pairs:
        if old is not None:
            tr[k(label(old, operand))] = old
    tr.commit().wait()

    tr = db.create_transaction()
    for old, operand in pairs:
        getattr(tr, name)(k(label(old, operand)), operand)
    read_back = {(old, operand): tr[k(label(old, operand))].value for old, operand in pairs}
    tr.commit().wait()

    reader = db.create_transaction()
    for old, operand in pairs:
        expected = OPERATIONS[name](old, operand)
        assert reader[k(label(old, operand))].value == expected, (old, operand)
        assert read_back[old, operand] == expected, (old, operand)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_on_an_own_write_does_the_same(db, k, name):
    """On a key set or cleared in the same transaction an operation works on that."""
    pairs = list(itertools.product(OLD_VALUES, OPERANDS))
    tr = db.create_transaction()
    for old, operand in pairs:
        key = k(label(old, operand))
        if old is None:
            del tr[key]
        else:
            tr[key] = old
        getattr(tr, name)(key, operand)
    tr.commit().wait()
    reader = db.create_transaction()
    for old, operand in pairs:
        assert reader[k(label(old, operand))].value == OPERATIONS[name](old, operand), (old, operand)


steps = st.lists(
    st.tuples(st.sampled_from(sorted(OPERATIONS)), st.sampled_from([*OPERANDS, b"\x07" * 9])),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_operations_stack_in_order(db, k, data):
    """Several operations on one key in one transaction apply one after the other."""
    old = data.draw(st.sampled_from(OLD_VALUES), label="old value")
    program = data.draw(steps, label="operations")
    tr = db.create_transaction()
    del tr[k("a")]
    if old is not None:
        tr[k("a")] = old
    tr.commit().wait()

    expected = old
    tr = db.create_transaction()
    for name, operand in program:
        getattr(tr, name)(k("a"), operand)
        expected = OPERATIONS[name](expected, operand)
    if data.draw(st.booleans(), label="read before the commit"):
        assert tr[k("a")].value == expected
    tr.commit().wait()
    assert db[k("a")] == expected


def test_append_stops_at_the_value_limit(db, k):
    """An append that would not fit leaves the value as it was."""
    db[k("a")] = b"x" * 99_999
    db.append_if_fits(k("a"), b"yy")
    assert len(db[k("a")]) == 99_999
    db.append_if_fits(k("a"), b"y")
    assert db[k("a")] == b"x" * 99_999 + b"y"


def test_concurrent_operations_all_count(db, k):
    """Atomic operations on one key never conflict, and none is lost."""
    writers = [db.create_transaction() for _ in range(10)]
    for tr in writers:
        tr.get_read_version().wait()
        tr.add(k("a"), b"\x01\x00")
    assert [commit_code(tr) for tr in writers] == [0] * 10
    assert db[k("a")] == b"\x0a\x00"


def test_the_names_with_bit_and_without_are_the_same(db, k):
    """`and`, `or` and `xor` have a spelling that Python can say."""
    tr = db.create_transaction()
    tr[k("a")] = b"\x06"
    getattr(tr, "and")(k("a"), b"\x03")
    getattr(tr, "or")(k("a"), b"\x08")
    tr.xor(k("a"), b"\x01")
    assert tr[k("a")] == b"\x0b"


def test_databases_have_the_operations_too(db, k):
    """`db.add(...)` and the others commit at once."""
    db.add(k("a"), b"\x01")
    db.bit_or(k("a"), b"\x06")
    db.max(k("b"), b"\x09")
    assert (db[k("a")], db[k("b")]) == (b"\x07", b"\x09")


def test_operands_may_be_values_that_were_read(db, k):
    """A value that was read can be an operand."""
    db[k("a")] = b"\x05"
    tr = db.create_transaction()
    tr.add(k("b"), tr[k("a")])
    assert tr[k("b")] == b"\x05"


@pytest.mark.parametrize("code", [3, 200])
def test_an_unknown_operation_is_refused(db, k, code):
    """Codes outside the table are an error at the next future."""
    tr = db.create_transaction()
    tr._atomic_operation(code, k("a"), b"\x01")
    assert error_code(lambda: tr[k("a")].wait()) == INVALID_MUTATION_TYPE
