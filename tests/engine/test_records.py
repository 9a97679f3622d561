"""The journal yields the records of commits, in order, and nothing else."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import journal
from fdbqueue.embedded.directory import Directory, System
from fdbqueue.embedded.journal import FILES, HEADER_BYTES, NOWHERE, Journal, JournalLost, Place, Writes

BEGIN = Place(1, 0, 0)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GENERATION_BYTES_MAX", 256)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    opened = Directory.open(str(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def one(directory: Directory) -> Iterator[Journal]:
    with closing(Journal(directory, RealRuntime())) as made:
        yield made


@pytest.fixture
def other(directory: Directory) -> Iterator[Journal]:
    """The journal, as another process sees it."""
    with closing(Journal(directory, RealRuntime())) as made:
        yield made


def writes(value: bytes) -> list[Writes]:
    return [Writes([(b"a", b"b")], {b"key": value, b"gone": None})]


def add(to: Journal, at: Place, value: bytes = b"value") -> Place:
    entry = to.entry(at, at.version + 1, writes(value))
    to.write(entry)
    to.flush(entry.end.generation)
    return entry.end


def versions(of: Journal, generation: int = 1) -> list[int]:
    return [record.version for record in of.records(generation)]


def file_of(directory: Directory, generation: int) -> Path:
    return Path(directory.path, FILES[generation % 2])


def test_a_record_is_read_as_it_was_written(one: Journal, other: Journal) -> None:
    end = add(one, BEGIN)

    assert [(record.version, record.previous, record.writes) for record in other.records(1)] == [
        (1, 0, writes(b"value"))
    ]
    assert [record.end for record in other.records(1)] == [end.end]


def test_a_record_with_one_changed_byte_is_not_there(one: Journal, directory: Directory) -> None:
    first = add(one, BEGIN)
    second = add(one, first)
    whole = file_of(directory, 1).read_bytes()

    for at in range(first.end, second.end - 8):
        if at not in range(first.end + 40, first.end + 48):  # of padding
            file_of(directory, 1).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert versions(one) == [1]


def test_a_record_without_its_end_is_not_there(one: Journal, directory: Directory) -> None:
    first = add(one, BEGIN)
    second = add(one, first)

    for size_bytes in range(second.end - 1, first.end - 1, -1):
        os.truncate(file_of(directory, 1), size_bytes)
        assert versions(one) == [1]


def test_records_of_an_earlier_generation_do_not_count(one: Journal) -> None:
    end = BEGIN
    for _ in range(3):
        end = add(one, end)
    one.free(1)
    add(one, Place(3, 0, end.version))  # in the same file, in front of the others

    assert versions(one, 3) == [4]
    assert versions(one, 1) == []
    assert one.generations() == [3]


def test_a_header_with_one_changed_byte_is_not_there(one: Journal, directory: Directory) -> None:
    add(one, BEGIN)
    file = file_of(directory, 1)
    whole = file.read_bytes()
    for at in range(journal._HEADER.size):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert one.generations() == []


def test_the_record_of_a_dead_leader_is_written_over(one: Journal, other: Journal) -> None:
    end = add(one, BEGIN)
    add(one, end, b"of a leader that died before LMDB had it")
    add(other, end, b"new")

    assert [record.writes for record in one.records(1)] == [writes(b"value"), writes(b"new")]


def test_a_dead_leader_leaves_no_record_before_the_switch(one: Journal, other: Journal) -> None:
    end = BEGIN
    while end.end < one.generation_bytes:
        end = add(one, end)
    one.generation_bytes *= 2  # it was the last one in its generation
    add(one, end, b"of a leader that died")
    switched = add(other, end)

    assert switched.generation == 2
    assert versions(one) == list(range(1, end.version + 1))
    assert [record.previous for record in one.records(2)] == [end.version]


def test_a_generation_that_a_dead_leader_began_begins_again(one: Journal, other: Journal) -> None:
    add(one, BEGIN, b"of a leader that died")
    end = add(other, BEGIN)
    add(one, end)  # not with the salt of its own beginning

    assert versions(other) == [1, 2]


def test_a_generation_that_was_begun_in_vain_is_forgotten(one: Journal, other: Journal) -> None:
    """Another process begins it with another salt."""
    entry = one.entry(BEGIN, 1, writes(b"refused"))
    one.write(entry)
    one.cut(entry)
    end = add(other, BEGIN)
    add(one, end)

    assert versions(other) == [1, 2]


def test_bytes_that_look_like_a_record_are_none(one: Journal, directory: Directory, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    foreign = Journal(Directory.open(str(tmp_path / "elsewhere")), RealRuntime())
    first = add(foreign, BEGIN)
    add(foreign, first)
    looks = (tmp_path / "elsewhere" / FILES[1]).read_bytes()[HEADER_BYTES:]
    foreign.close()
    end = add(one, BEGIN)
    with open(file_of(directory, 1), "r+b") as file:
        file.seek(end.end)
        file.write(looks[first.end - HEADER_BYTES :])

    assert versions(one) == [1]


def test_a_record_that_is_cut_is_not_there(one: Journal, other: Journal) -> None:
    end = add(one, BEGIN)
    entry = one.entry(end, 2, writes(b"refused"))
    one.write(entry)
    one.cut(entry)

    assert versions(other) == [1]
    add(one, end)
    assert versions(other) == [1, 2]


def test_a_record_of_which_a_part_had_room_is_cut(one: Journal, directory: Directory) -> None:
    end = add(one, BEGIN)
    entry = one.entry(end, 2, writes(b"refused"))
    one.write(entry)
    os.truncate(file_of(directory, 1), entry.start + 7)
    one.cut(entry)

    assert versions(one) == [1]
    assert file_of(directory, 1).stat().st_size == entry.start + 7


def test_a_journal_goes_on_behind_the_place_of_another_commit(one: Journal) -> None:
    """The record behind it was written for a state of the data that is not there."""
    end = add(one, BEGIN)
    add(one, end)

    assert not one.goes_on_behind(end)
    assert one.goes_on_behind(end._replace(version=end.version - 1))


def test_a_lost_journal_goes_on_behind_no_place(one: Journal) -> None:
    """After a failed flush, nothing in it is believed."""
    add(one, add(one, BEGIN))

    assert not one.goes_on_behind(NOWHERE)


def test_a_process_writes_to_the_files_that_another_renewed(one: Journal, other: Journal) -> None:
    end = add(other, BEGIN)
    one.renew()
    begun = add(one, Place(2, 0, end.version))
    add(other, begun)

    assert versions(one, 2) == [2, 3]


def test_a_process_finds_the_files_of_a_new_journal(one: Journal, other: Journal) -> None:
    add(one, BEGIN)
    other.renew()
    one.forget_renewed()
    add(one, BEGIN._replace(version=1))

    assert versions(other) == [2]


def test_no_record_goes_into_a_file_without_its_generation(one: Journal, other: Journal) -> None:
    end = add(other, BEGIN)
    one.renew()

    with pytest.raises(JournalLost):
        one.entry(end, 2, writes(b"value"))


def test_a_file_that_has_grown_gives_its_room_back(one: Journal, directory: Directory) -> None:
    add(one, BEGIN, bytes(8 * one.generation_bytes))
    one.free(1)

    assert file_of(directory, 1).stat().st_size == one.generation_bytes


def test_a_closed_journal_has_no_descriptors(directory: Directory) -> None:
    before = os.listdir("/proc/self/fd")
    made = Journal(directory, RealRuntime())
    made.allocate()
    made.close()

    assert os.listdir("/proc/self/fd") == before
    with pytest.raises(DatabaseClosed):
        made.generations()


def test_a_failed_flush_before_a_new_generation_counts(directory: Directory) -> None:
    """Otherwise a record of a dead leader would come back after a power cut."""
    fails: list[int] = []

    def flush(_: object) -> None:
        if fails:
            raise OSError(fails.pop(), "")

    with closing(Journal(directory, RealRuntime(), System(flush=flush))) as journal:
        journal.generation_bytes = 1
        end = add(journal, BEGIN)
        fails.append(5)
        with pytest.raises(JournalLost):
            journal.entry(end, 2, writes(b"value"))


def test_a_journal_that_is_closed_in_use_lends_no_descriptor(directory: Directory, tmp_path: Path) -> None:
    """Otherwise a record could be written into a file of the program, or that file be flushed instead."""
    used = []

    def close_and_open(fd: int) -> None:
        made.close()
        with open(tmp_path / "of the program", "w"):
            used.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))

    made = Journal(directory, RealRuntime(), System(flush=close_and_open))
    add(made, BEGIN)

    assert used == ["journal.1"]
