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


def _process(record: Record) -> int:
    return record.number >> 32


def _of_folders(records: Sequence[Record]) -> set[int]:
    """The numbers of the syncs of directories: of files that no record writes."""
    written = {one.file for one in records if one.kind in (Kind.WRITE, Kind.ALLOCATE)}
    return {one.number for one in records if one.kind is Kind.SYNC and one.file not in written}
