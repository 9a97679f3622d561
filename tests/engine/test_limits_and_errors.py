"""The limits of FoundationDB, and the errors beyond them."""

import pytest

from tests.engine.releases import MUTATION_BYTES_LESS, is_before_7_3
from tests.support import (
    INVERTED_RANGE,
    KEY_OUTSIDE_LEGAL_RANGE,
    KEY_TOO_LARGE,
    NOT_COMMITTED,
    TRANSACTION_TOO_LARGE,
    VALUE_TOO_LARGE,
    begin,
    commit_code,
    error_code,
)

KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 100_000
TRANSACTION_BYTES_MAX = 10_000_000


def key_of(k, size_bytes, last=b""):
    return k(b"x" * (size_bytes - len(k.prefix) - len(last)) + last)


def test_a_key_of_the_largest_size_is_stored(db, k):
    key = key_of(k, KEY_BYTES_MAX)
    db[key] = b"value"
    assert db[key] == b"value"
    assert [row.key for row in db.get_range(k.begin, k.end)] == [key]


def test_clearing_what_cannot_exist_is_nothing(db, k):
    k.write(db, "a")
    tr = db.create_transaction()
    tr.clear(key_of(k, KEY_BYTES_MAX + 1))
    tr.clear_range(key_of(k, KEY_BYTES_MAX + 5), key_of(k, KEY_BYTES_MAX + 5, b"y"))
    del tr[k("a") : k("a")]
    assert commit_code(tr) == 0
    assert k.names(db.get_range(k.begin, k.end)) == "a"


@pytest.mark.parametrize(
    ("write", "code"),
    [
        (lambda tr, k: tr.set(key_of(k, KEY_BYTES_MAX + 1), b"\x01"), KEY_TOO_LARGE),
        (lambda tr, k: tr.add(key_of(k, KEY_BYTES_MAX + 1), b"\x01"), KEY_TOO_LARGE),
        (lambda tr, k: tr.set(k("a"), b"v" * VALUE_BYTES_MAX), 0),
        (lambda tr, k: tr.set(k("a"), b"v" * (VALUE_BYTES_MAX + 1)), VALUE_TOO_LARGE),
        (lambda tr, k: tr.append_if_fits(k("a"), b"v" * VALUE_BYTES_MAX), 0),
        (lambda tr, k: tr.append_if_fits(k("a"), b"v" * (VALUE_BYTES_MAX + 1)), VALUE_TOO_LARGE),
        (lambda tr, k: tr.clear_range(k("b"), k("a")), INVERTED_RANGE),
    ],
)
def test_a_write_beyond_a_limit_is_refused(db, k, write, code):
    tr = db.create_transaction()
    write(tr, k)
    assert commit_code(tr) == code


def test_a_bad_write_is_reported_by_the_next_future(db, k):
    """The write itself raises nothing; each later read and the commit raise the error."""
    tr = db.create_transaction()
    tr[key_of(k, KEY_BYTES_MAX + 1)] = b"1"
    assert error_code(lambda: tr[k("a")].wait()) == KEY_TOO_LARGE
    assert error_code(lambda: tr.get_read_version().wait()) == KEY_TOO_LARGE
    assert commit_code(tr) == KEY_TOO_LARGE


def test_the_first_bad_write_is_the_one_reported(db, k):
    tr = db.create_transaction()
    tr[k("a")] = b"v" * (VALUE_BYTES_MAX + 1)
    tr[b"\xff\x01"] = b"1"
    assert commit_code(tr) == VALUE_TOO_LARGE


def test_a_bad_write_commits_nothing(db, k):
    tr = db.create_transaction()
    tr[k("a")] = b"1"
    tr[b"\xff\x01"] = b"1"
    tr[k("b")] = b"1"
    assert commit_code(tr) == KEY_OUTSIDE_LEGAL_RANGE
    assert db.get_range(k.begin, k.end) == []


@pytest.mark.parametrize("again", [lambda tr: tr.reset(), lambda tr: tr.on_error(NOT_COMMITTED).wait()])
def test_another_attempt_forgets_a_bad_write(db, k, again):
    """With a timeout, which lasts over all attempts, each call looks for a bad write."""
    tr = begin(db)
    tr.options.set_timeout(600_000)
    tr[b"\xff\x01"] = b"1"
    again(tr)
    tr[k("a")] = b"1"
    assert commit_code(tr) == 0


@pytest.mark.parametrize(
    "use",
    [
        lambda tr: tr.set(b"\xff", b"1"),
        lambda tr: tr.set(b"\xff\x01", b"1"),
        lambda tr: tr.clear(b"\xff\x01"),
        lambda tr: tr.add(b"\xff\x01", b"\x01"),
        lambda tr: tr.clear_range(b"a", b"\xff\x01"),
        lambda tr: tr.get(b"\xff").wait(),
        lambda tr: tr.get(b"\xff\x01").wait(),
        lambda tr: tr.snapshot.get(b"\xff\x01").wait(),
        lambda tr: tr.get_range(b"\xfe", b"\xff\x01").to_list(),
        lambda tr: tr.add_read_conflict_key(b"\xff"),
        lambda tr: tr.add_read_conflict_range(b"\xff\x01", b"\xff\x02"),
        lambda tr: tr.add_write_conflict_key(b"\xff\x01"),
    ],
)
def test_keys_from_ff_on_are_the_systems(db, use):
    tr = db.create_transaction()
    assert error_code(lambda: (use(tr), tr.commit().wait())) == KEY_OUTSIDE_LEGAL_RANGE


@pytest.mark.parametrize(
    "use",
    [
        lambda tr: tr.get_range(b"\xfe\xff\xff", b"\xff").to_list(),
        lambda tr: tr.add_read_conflict_range(b"\xfe\xff\xff", b"\xff"),
        lambda tr: tr.add_write_conflict_range(b"\xfe\xff\xff", b"\xff"),
        lambda tr: tr.clear_range(b"\xff", b"\xff"),  # without an end, since keys below may belong to users
    ],
)
def test_ff_is_the_end_of_the_ordinary_keys(db, use):
    """b"\\xff" itself is a legal end."""
    tr = db.create_transaction()
    assert error_code(lambda: (use(tr), tr.commit().wait())) == 0


def test_a_selector_beyond_ff_is_refused(db, fdb_module):
    selector = fdb_module.KeySelector.last_less_than
    tr = db.create_transaction()
    assert error_code(lambda: tr.get_key(selector(b"\xff")).wait()) == 0
    assert error_code(lambda: tr.get_key(selector(b"\xff\x01")).wait()) == KEY_OUTSIDE_LEGAL_RANGE


@pytest.mark.parametrize(
    ("value_bytes", "code"), [(VALUE_BYTES_MAX, TRANSACTION_TOO_LARGE), (VALUE_BYTES_MAX - 2_000, 0)]
)
def test_a_transaction_has_ten_megabytes_at_most(db, k, value_bytes, code):
    """Beyond that the commit is refused, whole."""
    tr = db.create_transaction()
    for number in range(TRANSACTION_BYTES_MAX // VALUE_BYTES_MAX):
        tr[k(b"%03d" % number)] = b"v" * value_bytes
    assert (tr.get_approximate_size().wait() < TRANSACTION_BYTES_MAX) is (code == 0)
    assert commit_code(tr) == code
    assert len(db.get_range(k.begin, k.end)) == (0 if code else 100)


def test_read_conflicts_count_for_the_size(db, k):
    tr = begin(db)
    for number in range(1_000):
        tr.add_read_conflict_key(k(b"%03d" % number + b"x" * 9_000))
    tr[k("a")] = b"1"
    assert commit_code(tr) == TRANSACTION_TOO_LARGE


@pytest.mark.parametrize(("value_bytes", "code"), [(1_000, 0), (5_000, TRANSACTION_TOO_LARGE)])
def test_size_limit_lowers_the_limit(db, k, value_bytes, code):
    tr = db.create_transaction()
    tr.options.set_size_limit(5_000)
    tr[k("a")] = b"v" * value_bytes
    assert commit_code(tr) == code


def test_the_approximate_size_grows_with_each_operation(db, k):
    tr = begin(db)
    sizes = [tr.get_approximate_size().wait()]
    for step in (
        lambda: tr.set(k("a"), b"v" * 100),
        lambda: tr.clear(k("b")),
        lambda: tr.clear_range(k("c"), k("d")),
        lambda: tr.add(k("e"), b"\x01"),
        lambda: tr.add_read_conflict_key(k("f")),
        lambda: tr.add_write_conflict_key(k("g")),
        lambda: tr[k("h")].wait(),
    ):
        step()
        sizes.append(tr.get_approximate_size().wait())
    assert sizes[0] == 0
    assert sizes == sorted(set(sizes))
    tr.reset()
    assert tr.get_approximate_size().wait() == 0


@pytest.mark.parametrize(
    ("use", "key_count", "fixed_bytes"),
    [
        (lambda tr, key: tr.set(key, b"v" * 100), 3, 100 + 69),
        (lambda tr, key: tr.add(key, b"\x01"), 3, 1 + 69),
        (lambda tr, key: tr.clear(key), 4, 50),
        (lambda tr, key: tr.clear_range(key, key + b"x"), 4, 2 + 68),
        (lambda tr, key: tr.get(key).wait(), 2, 25),
        (lambda tr, key: tr.add_read_conflict_key(key), 2, 25),
        (lambda tr, key: tr.add_write_conflict_key(key), 2, 25),
    ],
)
def test_the_approximate_size_is_the_servers(db, engine, k, use, key_count, fixed_bytes):
    """Each operation counts its key one to three times, its value, and sizes of FoundationDB's structures."""
    if is_before_7_3(engine) and fixed_bytes > 50:
        fixed_bytes -= MUTATION_BYTES_LESS
    tr = db.create_transaction()
    use(tr, k("a"))
    assert tr.get_approximate_size().wait() == key_count * len(k("a")) + fixed_bytes


def test_bytes_of_a_class_derived_from_bytes_are_bytes(db, k):
    """Libraries have such classes for hashes; keys and values may have them."""

    class Hash(bytes):
        pass

    tr = begin(db)
    tr[Hash(k("read"))].wait()
    tr[Hash(k("set"))] = Hash(b"value")
    tr.add(Hash(k("sum")), Hash(b"\x01"))
    tr.clear_range(Hash(k("x")), Hash(k("y")))
    tr.set_versionstamped_value(Hash(k("stamp")), Hash(bytes(14)))
    tr.add_write_conflict_key(Hash(k("conflict")))
    assert commit_code(tr) == 0
    assert (db[k("set")], db[Hash(k("sum"))]) == (b"value", b"\x01")


@pytest.mark.parametrize("given", ["text", 7, None, bytearray(b"a")])
@pytest.mark.parametrize("use", [lambda tr, key: tr.set(key, b"1"), lambda tr, key: tr.get(key)])
def test_keys_are_bytes(db, given, use):
    """Anything else is a TypeError, at once."""
    with pytest.raises(TypeError):
        use(db.create_transaction(), given)


@pytest.mark.parametrize("value", ["text", 7, None])
def test_values_are_bytes(db, k, value):
    with pytest.raises(TypeError):
        db.create_transaction()[k("a")] = value


def test_an_error_carries_its_code_and_description(db, fdb_module, k):
    tr = db.create_transaction()
    tr[k("a")] = b"v" * (VALUE_BYTES_MAX + 1)
    with pytest.raises(fdb_module.FDBError) as raised:
        tr.commit().wait()
    error = raised.value
    assert error.code == VALUE_TOO_LARGE
    assert repr(error) == "FDBError(2103)"
    assert "Value length exceeds limit" in str(error.description)
    assert "Value length exceeds limit" in str(error)
    assert "(2103)" in str(error)
