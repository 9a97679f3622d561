"""The journal of a directory: processes that die, fail or are interrupted, then another process goes on."""

import os
from contextlib import closing

import pytest

from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.journal import Journal, JournalLost, Place, Writes
from fdbqueue.embedded.system import System

BEGIN = Place(1, 0, 0)
WRITES = [Writes([], {b"key": b"value"})]


@pytest.fixture
def journals(tmp_path):
    """Two processes' views of one journal."""
    directory = Directory.open(str(tmp_path))
    with closing(Journal(directory, RealRuntime())) as one, closing(Journal(directory, RealRuntime())) as two:
        yield one, two
    directory.close()


def written(journal, at, version):
    entry = journal.entry(at, version, WRITES)
    journal.write(entry)
    journal.flush(entry.end.generation)
    return entry


def versions(journal, generation=1):
    return [record.version for record in journal.records(generation)]


def test_a_generation_that_was_begun_in_vain_is_forgotten(journals):
    """Another process begins it with another salt."""
    one, two = journals
    one.cut(written(one, BEGIN, 1))
    first = written(two, BEGIN, 1)
    written(one, first.end, 2)
    assert versions(two) == [1, 2]


def test_a_process_finds_the_files_of_a_new_journal(journals):
    one, two = journals
    written(one, BEGIN, 1)
    two.renew()
    one.forget_renewed()
    written(one, BEGIN, 2)
    assert versions(two) == [2]


def test_a_failed_flush_before_a_new_generation_counts(tmp_path):
    """Otherwise a record of a dead leader would come back after a power cut."""
    fails = []

    def flush(_):
        if fails:
            raise OSError(fails.pop(), "")

    directory = Directory.open(str(tmp_path))
    with closing(Journal(directory, RealRuntime(), System(flush=flush))) as journal:
        journal.generation_bytes = 1
        first = written(journal, BEGIN, 1)
        fails.append(5)
        with pytest.raises(JournalLost):
            journal.entry(first.end, 2, WRITES)
    directory.close()


def test_a_journal_that_is_closed_in_use_lends_no_descriptor(tmp_path):
    """Otherwise a record could be written into a file of the program, or that file be flushed instead."""
    used = []

    def close_and_open(fd):
        journal.close()
        with open(tmp_path / "of the program", "w"):
            used.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))

    directory = Directory.open(str(tmp_path))
    journal = Journal(directory, RealRuntime(), System(flush=close_and_open))
    written(journal, BEGIN, 1)
    directory.close()

    assert used == ["journal.1"]
