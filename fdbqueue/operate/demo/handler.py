"""The handler of the demo: it counts a part of a file, and writes the result with the ack."""

import logging
from typing import Any

from fdb.subspace_impl import Subspace

from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Done
from fdbqueue.operate.demo.ledger import Ledger, Part, count

HANDLER = f"{__name__}:make"


def make(argument: Any) -> "Counting":
    """Make the handler of a worker process; `argument` is the prefix of the ledger, in hexadecimal."""
    # The demo causes the faults itself, and reports them at the end: the log would repeat them.
    logging.getLogger("fdbqueue").addHandler(logging.NullHandler())
    return Counting(Ledger(Subspace((), bytes.fromhex(argument))))


class Counting:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __call__(self, task: HeldTask) -> None:
        part = Part(*task.data)
        counted = count(part)
        raise Done(lambda tr: self._ledger.count(tr, part, counted))
