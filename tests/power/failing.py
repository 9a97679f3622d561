"""A program whose disk fails for a moment, and works again: `python -m tests.power.failing PATH LOG SHAPE`.

It goes on after each error. It ends with 0 if its last steps have succeeded, in the same process.
"""

import sys
from collections.abc import Callable

import fdbqueue
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.seam import FDBError
from tests.power import disk, program, promises
from tests.power.promises import SHAPES

STEPS, LAST_STEPS = 14, 4
OPENINGS = 5
REFUSED = (FdbQueueError, FDBError)


class PatientWorker(promises.Worker):
    """Goes on after a change that failed: it may have happened, or not."""

    errors: list[str]

    def change(self, verb: str, name: str, act: Callable[[], object]) -> bool:
        try:
            return super().change(verb, name, act)
        except REFUSED as error:
            self.errors.append(f"{verb} {name}: {type(error).__name__}: {error}")
            return False


def main(path: str, log: str, shape: str) -> int:
    tell = disk.teller(log)
    for opening in range(OPENINGS):
        try:
            with SHAPES[shape].used():
                return work(path, opening, tell)
        except REFUSED as error:
            tell("begun", "open", f"{type(error).__name__}: {error}")
    return 1


def work(path: str, opening: int, tell: promises.Tell) -> int:
    """Work for some steps. Returns 1 if one of the last steps failed, or was refused."""
    with fdbqueue.open(f"embedded:{path}") as db:
        program.make_queue(db, tell)
        worker = PatientWorker(db, f"opening-{opening}", tell)
        errors: list[str] = []
        for step in range(STEPS):
            worker.errors = []
            try:
                worker.step(f"{opening}.{step}")
            except REFUSED as error:  # of a take
                worker.errors.append(f"take: {type(error).__name__}: {error}")
            for text in worker.errors:
                tell("begun", "error", text)
            errors = worker.errors if step >= STEPS - LAST_STEPS else []
            if errors:
                print(errors, file=sys.stderr)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
