"""Opens a directory after a power cut: `python -m tests.power.again PATH LOG NAME STEPS SHAPE`.

It notes all entries and tasks that it finds, and works. From then on, no power cut may remove one of
them, nor bring another one back.
"""

import sys

import fdbqueue
from tests.power import disk, program, promises
from tests.power.promises import SHAPES


def main(path: str, log: str, name: str, steps: str, shape: str) -> None:
    tell = disk.teller(log)
    with SHAPES[shape].used(), fdbqueue.open(f"embedded:{path}") as db:
        tell("seen", "add", "\n".join(promises.names(db, promises.ENTRY)))
        if promises.QUEUE in fdbqueue.list_queues(db):
            tell("seen", "put", "\n".join(promises.tasks(db)))
        program.make_queue(db, tell)
        promises.work(db, name, int(steps), tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
