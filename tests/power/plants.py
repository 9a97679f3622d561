"""Missing and swapped syncs, planted into the record of a run: the judge has to find each."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.power.records import Kind, Record

Plant = Callable[[Sequence[Record]], Iterable[Record]]


def no_data_sync(records: Sequence[Record]) -> Iterator[Record]:
    """The syncs of files never happen; writes through synced descriptors do."""
    dropped = {one.number for one in records if one.kind is Kind.SYNC} - _of_folders(records)
    return (one for one in records if one.number not in dropped)


def no_directory_sync(records: Sequence[Record]) -> Iterator[Record]:
    """The syncs of directories never happen."""
    dropped = _of_folders(records)
    return (one for one in records if one.number not in dropped)


def swapped(records: Sequence[Record]) -> list[Record]:
    """Each process syncs its pages only after the synced write that makes them valid."""
    synced = {one.number for one in records if one.is_synced}
    syncs = {one.number for one in records if one.kind is Kind.SYNC}
    made: list[Record] = []
    held: defaultdict[int, list[Record]] = defaultdict(list)
    for one in records:
        if one.number in syncs:
            held[_process(one)].append(one)
            continue
        made.append(one)
        if one.kind is Kind.END and one.number in synced:
            made += held.pop(_process(one), [])
    return made


def no_record_sync(records: Sequence[Record]) -> Iterator[Record]:
    """The syncs of the journal never happen."""
    dropped = _syncs_of("journal.", records)
    return (one for one in records if one.number not in dropped)


def late_record_sync(records: Sequence[Record]) -> Iterator[Record]:
    """Each sync of the journal comes before the next record of its process: after the answers to callers."""
    journals, late = _files("journal.", records), _syncs_of("journal.", records)
    held: defaultdict[int, list[Record]] = defaultdict(list)
    for one in records:
        if one.number in late:
            held[_process(one)].append(one)
            continue
        if one.kind is Kind.WRITE and one.file in journals:
            yield from held.pop(_process(one), [])
        yield one


def early_rename(records: Sequence[Record]) -> Iterator[Record]:
    """A new base has its name before it has its content."""
    renames = iter([one for one in records if one.kind is Kind.RENAME and one.name.endswith("/base.new")])
    for one in records:
        if one.kind is not Kind.RENAME or not one.name.endswith("/base.new"):
            yield one
        if one.kind is Kind.CREATE and one.name.endswith("/base.new"):
            yield next(renames)


def early_free(records: Sequence[Record]) -> list[Record]:
    """A file of the journal is free before the base has its records."""
    journals, bases = _files("journal.", records), _files("base.", records)
    made: list[Record] = []
    begun: dict[int, int] = {}
    for one in records:
        process = _process(one)
        if one.kind is Kind.WRITE and one.file in bases:
            begun.setdefault(process, len(made))
        if one.kind is Kind.WRITE and one.file in journals and one.at == 0 and not any(one.data):
            made.insert(begun.get(process, len(made)), one)
            begun = {}
        else:
            made.append(one)
    return made


def _files(name: str, records: Sequence[Record]) -> set[int]:
    """The files whose first names begin like this."""
    return {one.file for one in records if one.kind is Kind.CREATE and f"/{name}" in one.name}


def _syncs_of(name: str, records: Sequence[Record]) -> set[int]:
    files = _files(name, records)
    return {one.number for one in records if one.kind is Kind.SYNC and one.file in files}


def _process(record: Record) -> int:
    return record.number >> 32


def _of_folders(records: Sequence[Record]) -> set[int]:
    """The numbers of the syncs of directories: of files that no record writes."""
    written = {one.file for one in records if one.kind in (Kind.WRITE, Kind.ALLOCATE)}
    return {one.number for one in records if one.kind is Kind.SYNC and one.file not in written}
