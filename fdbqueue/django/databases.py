"""The databases of a process, and the program's transaction.

Django makes a backend for each thread and each request of an asynchronous server. They share the database.
"""

from contextlib import AbstractContextManager

from fdbqueue.frameworks.opening import Opening
from fdbqueue.frameworks.within import Within
from fdbqueue.seam import AnyDatabase, AnyTransaction

_openings: dict[str | None, Opening] = {}
within = Within()


def opening_of(place: str | AnyDatabase | None) -> Opening:
    """The opening of an open database; the one opening of this process for a URL, or the environment."""
    if place is None or isinstance(place, str):
        return _openings.setdefault(place, Opening(place))
    return Opening(place)


def transaction(tr: AnyTransaction) -> AbstractContextManager[None]:
    """Enqueue the tasks of the block within `tr`: they are there if and only if `tr` commits.

    `tr` is a transaction of the database of the backend. The block may run again, with the whole body of
    `tr`: then the tasks of the earlier run are gone, and the new ones have new ids. Do not wait for a result
    inside: the task is not there before the commit.
    """
    return within.block(tr)
