"""The journal and the base of a directory: their bytes, and whether the base keeps up."""

import os
from contextlib import closing
from dataclasses import dataclass

from fdbqueue.embedded import base as bases
from fdbqueue.embedded.journal import FILES, Place
from fdbqueue.embedded.store import Store


@dataclass(frozen=True)
class JournalState:
    """The state of the journal and the base of one directory. A private store has neither."""

    journal_bytes: int = 0
    """The size of both files of the journal."""
    base_bytes: int = 0
    """The size of `base.mdb`."""
    waiting_bytes: int = 0
    """Of records that the base does not have yet, at most."""
    generation_bytes: int = 0
    checkpoint_waits: bool = False
    """True if a full generation is not in the base yet."""
    missing: tuple[str, ...] = ()
    """Files that are not there, or that have lost the newest commit."""


NO_JOURNAL = JournalState()


def see_journal(store: Store, newest: Place) -> JournalState:
    """Read the state of an open store whose newest commit is at `newest`.

    Raises: OSError.
    """
    names = set(os.listdir(store.directory.fd))
    missing = tuple(name for name in (bases.FILE, *FILES) if name not in names)
    if missing:  # a look must not make them
        return JournalState(missing=missing)
    sizes = [store.directory.size_bytes(name) for name in FILES]
    with closing(store.new_journal()) as journal:
        found, generation_bytes = journal.generations(), journal.generation_bytes
    full = [number for number in found if number < newest.generation]
    is_lost = newest.end > 0 and newest.generation not in found
    return JournalState(
        sum(sizes),
        store.directory.size_bytes(bases.FILE),
        newest.end + sum(sizes[number % len(FILES)] for number in full),
        generation_bytes,
        bool(full),
        (FILES[newest.generation % len(FILES)],) if is_lost else (),
    )
