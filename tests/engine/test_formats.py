"""The format of a directory has two numbers: the second one changes where an earlier release may go on."""

from pathlib import Path

import lmdb
import pytest

import fdbqueue
from fdbqueue.core.errors import StorageFormat
from fdbqueue.embedded import layout


def made(tmp_path: Path, file: str, version: bytes) -> Path:
    """A directory with a key, of which one file has another format; after a power cut, the base counts."""
    path = tmp_path / "data"
    with fdbqueue.open(f"embedded:{path}") as db:
        db[b"a"] = b"1"
    with lmdb.open(str(path / file), subdir=False, lock=False) as env, env.begin(write=True) as txn:
        txn.put(layout.FORMAT_KEY, version)
    if file == "base.mdb":
        (path / "in-use").write_bytes(b"another boot")
    return path


@pytest.mark.parametrize("file", ["data.mdb", "base.mdb"])
def test_a_format_with_a_larger_minor_number_is_opened(tmp_path: Path, file: str) -> None:
    path = made(tmp_path, file, b"%d.%d" % (layout.FORMAT_MAJOR, layout.FORMAT_MINOR + 1))
    with fdbqueue.open(f"embedded:{path}") as db:
        assert db[b"a"] == b"1"


@pytest.mark.parametrize("file", ["data.mdb", "base.mdb"])
def test_a_newer_format_is_refused(tmp_path: Path, file: str) -> None:
    """The numbers are no text: as a text, ten comes before two. Nothing is changed."""
    path = made(tmp_path, file, b"10.0")
    before = (path / file).read_bytes()
    with pytest.raises(StorageFormat, match="upgrade fdbqueue") as refused:
        fdbqueue.open(f"embedded:{path}")
    assert str(path) in str(refused.value)
    assert (path / file).read_bytes() == before
