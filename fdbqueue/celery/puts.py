"""The transaction of the program, in which a block of code puts its Celery tasks."""

from contextlib import AbstractContextManager

from fdbqueue.arguments import writable
from fdbqueue.frameworks.within import Within
from fdbqueue.seam import AnyTransaction, Transaction

_within = Within()


def transaction(tr: AnyTransaction) -> AbstractContextManager[None]:
    """Put the tasks that this block sends within `tr`: they are there if and only if `tr` commits.

    `tr` is a transaction of the database of the broker, in the same thread. The block may run again, with the
    whole body of `tr`: then the tasks of the earlier run are gone, and the new ones have new ids. A task must
    not be waited for inside: it is not there before the commit.
    """
    return _within.block(writable(tr))


def current() -> Transaction | None:
    """The transaction of the block around the caller; None outside."""
    found: Transaction | None = _within.current()
    return found
