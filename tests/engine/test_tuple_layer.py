"""The binding's tuple layer, taken from `fdbqueue.embedded`, without the C library."""

from tests.support import run_program


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
