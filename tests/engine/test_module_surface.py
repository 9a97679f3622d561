"""`import fdbqueue.embedded as fdb`: a program written for the binding runs on a directory."""

import fdb
import pytest

import fdbqueue.embedded as embedded
from tests.support import run_program

# What fdb.api_version() puts into the binding's module, without directory layer, tenants and locality.
NAMES = [
    "FDBError",
    "predicates",
    "Future",
    "Database",
    "Transaction",
    "KeyValue",
    "KeySelector",
    "open",
    "transactional",
    "options",
    "StreamingMode",
    "Subspace",
    "tuple",
    "impl",
    "api_version",
    "get_api_version",
    "is_api_version_selected",
]


def test_the_module_has_the_bindings_names(fdb_module):
    """The modules of all engines have them."""
    assert [name for name in NAMES if not hasattr(fdb_module, name)] == []


def test_the_newest_api_version_is_the_bindings():
    """The binding 7.1 knows 710, and has no name for it."""
    assert getattr(fdb, "LATEST_API_VERSION", 710) == embedded.LATEST_API_VERSION


def public_names(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_embedded_classes_have_the_bindings_methods(db, fdb_module):
    """Every public method of the binding's classes, tenants and locality aside."""
    transaction = """
        get_read_version get get_key get_range get_range_startswith get_estimated_range_size_bytes
        get_range_split_points set_read_version set clear clear_range clear_range_startswith watch
        add_read_conflict_range add_read_conflict_key add_write_conflict_range add_write_conflict_key commit
        get_committed_version get_approximate_size get_versionstamp on_error reset cancel options snapshot db
        """
    operations = """
        add and bit_and or bit_or xor bit_xor append_if_fits max min byte_min byte_max compare_and_clear
        set_versionstamped_key set_versionstamped_value
        """
    database = """
        get get_key get_range get_range_startswith set clear clear_range clear_range_startswith
        get_and_watch set_and_watch clear_and_watch create_transaction options
        """
    future = "wait is_ready block_until_ready on_ready cancel wait_for_any"
    assert set(transaction.split() + operations.split()) <= public_names(db.create_transaction())
    assert set(database.split() + operations.split()) <= public_names(db.engine)
    assert set(future.split()) <= public_names(fdb_module.Future)


def test_the_class_scheduling_tutorial(tmp_path):
    """A piece of the tutorial: tuples, subspaces by hand, transactional functions calling each other."""
    printed = run_program(
        tmp_path,
        """
        import itertools
        import fdbqueue.embedded as fdb
        import fdbqueue.embedded.impl

        fdb.api_version(710)
        db = fdb.open('school')
        db.options.set_transaction_timeout(60000)
        db.options.set_transaction_retry_limit(100)
        course = fdb.Subspace(('class',))
        attends = fdb.Subspace(('attends',))

        @fdb.transactional
        def add_class(tr, c):
            tr[course.pack((c,))] = fdb.tuple.pack((2,))

        @fdb.transactional
        def init(tr):
            del tr[course.range(())]
            del tr[attends.range(())]
            for level, kind in itertools.product(['intro', 'for dummies'], ['chem', 'bio']):
                add_class(tr, kind + ' ' + level)

        @fdb.transactional
        def available_classes(tr):
            return [course.unpack(k)[0] for k, v in tr[course.range(())] if fdb.tuple.unpack(v)[0]]

        @fdb.transactional
        def signup(tr, s, c):
            rec = attends.pack((s, c))
            if tr[rec].present():
                return
            seats_left = fdb.tuple.unpack(tr[course.pack((c,))])[0]
            if not seats_left:
                raise Exception('No remaining seats')
            tr[course.pack((c,))] = fdb.tuple.pack((seats_left - 1,))
            tr[rec] = b''

        init(db)
        signup(db, 'alice', 'bio intro')
        signup(db, 'alice', 'bio intro')
        signup(db, 'bob', 'bio intro')
        try:
            signup(db, 'carol', 'bio intro')
        except Exception as e:
            print(e)
        print(available_classes(db))
        try:
            tr = db.create_transaction()
            tr[b'\\xff'] = b''
            tr.commit().wait()
        except fdb.FDBError as e:
            print(e.code, isinstance(e, fdb.impl.FDBError))
        """,
    )
    assert printed == "No remaining seats\n['bio for dummies', 'chem for dummies', 'chem intro']\n2004 True\n"


def test_the_api_version_is_chosen_once(tmp_path):
    """Choosing it again is fine, choosing another is not, and neither is one out of reach."""
    printed = run_program(
        tmp_path,
        """
        import fdbqueue.embedded as fdb

        def refused(call, *arguments):
            try:
                call(*arguments)
            except RuntimeError as e:
                return str(e)

        print(fdb.is_api_version_selected(), refused(fdb.get_api_version))
        print(all(refused(fdb.api_version, wrong) for wrong in (12, 100_000)))
        fdb.api_version(710)
        fdb.api_version(710)
        print(fdb.get_api_version(), fdb.is_api_version_selected(), refused(fdb.api_version, 720))
        """,
    )
    assert printed.splitlines() == [
        "False API version is not set",
        "True",
        "710 True FDB API already loaded at version 710",
    ]


def test_one_directory_is_one_database(tmp_path):
    """open() gives the same object for the same path, as the binding does for a cluster file."""
    first = embedded.open(str(tmp_path / "data"))
    try:
        assert embedded.open(str(tmp_path / "data")) is first
    finally:
        first.close()


def test_embedding_needs_no_client_library(tmp_path, monkeypatch):
    """Nothing of the embedded engine imports what loads libfdb_c; only the guard of the tests does."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    printed = run_program(
        tmp_path,
        """
        import sys
        import fdbqueue
        import fdbqueue.embedded
        with fdbqueue.open("memory:") as db:
            db[b"a"] = b"1"
        print("fdb.impl" in sys.modules, "fdb.directory_impl" in sys.modules)
        """,
    )
    assert printed == "False False\n"


@pytest.mark.parametrize(
    ("key", "end"), [(b"a", b"b"), (b"a\xff", b"b"), (b"\x00", b"\x01"), (b"a\xfe\xff\xff", b"a\xff")]
)
def test_strinc_is_the_end_of_a_prefix(fdb_module, key, end):
    assert fdb_module.impl.strinc(key) == end


def test_a_versionstamped_tuple_is_packed_and_stored(tmp_path):
    """`pack_with_versionstamp` works in a program that imports only the embedded engine."""
    printed = run_program(
        tmp_path,
        """
        import fdbqueue.embedded as fdb

        db = fdb.open("data")
        incomplete = fdb.tuple.pack_with_versionstamp(("log", fdb.tuple.Versionstamp(user_version=7)))
        db.set_versionstamped_key(incomplete, b"entry")
        (entry,) = db.get_range_startswith(fdb.tuple.pack(("log",)))
        name, stamp = fdb.tuple.unpack(entry.key)
        print(name, stamp.is_complete(), stamp.user_version)
        """,
    )
    assert printed.split() == ["log", "True", "7"]
