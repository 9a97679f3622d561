"""Works on a directory, and notes each change: `python -m tests.power.program PATH LOG NAME STEPS SHAPE`."""

import sys
from threading import Thread

import fdbqueue
from fdbqueue.core.errors import QueueExists
from tests.power import disk, promises
from tests.power.promises import SHAPES

THREADS = 2


def main(path: str, log: str, name: str, steps: str, shape: str) -> None:
    tell = disk.teller(log)
    with SHAPES[shape].used(), fdbqueue.open(f"embedded:{path}") as db:
        make_queue(db, tell)
        workers = [
            Thread(target=promises.work, args=(db, f"{name}-{number}", int(steps), tell))
            for number in range(THREADS)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()


def make_queue(db: fdbqueue.Database, tell: promises.Tell) -> None:
    try:
        fdbqueue.TaskQueue.create(db, promises.QUEUE, "fifottl", ttr=60)
    except QueueExists:
        return
    tell("done", "queue", "made")


if __name__ == "__main__":
    main(*sys.argv[1:])
