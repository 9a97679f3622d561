"""A worker in Python beside those in Node: the ack of a task adds to a key of it, in one transaction.

It adds 1, and 1 in the upper half of the number, where those in Node add nothing.
"""

import struct
import sys
from typing import Any

import fdbqueue
from fdbqueue import Subspace, Task, TaskQueue
from fdbqueue.core.errors import FdbQueueError


def main(url: str, root_hex: str, name: str, effects_hex: str) -> None:
    effects = bytes.fromhex(effects_hex)
    with fdbqueue.open(url) as db:
        queue = TaskQueue.open(db, name, root=Subspace(rawPrefix=bytes.fromhex(root_hex)))

        @fdbqueue.transactional
        def ended(tr: Any, task: Task) -> None:
            tr.add(effects + struct.pack(">I", task.data["n"]), struct.pack("<II", 1, 1))
            queue.ack(tr, task)

        while True:
            task = queue.take(db, timeout=1)
            if task is None:
                continue
            try:
                ended(db, task)
            except FdbQueueError as error:
                print(f"task {task.data['n']}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
