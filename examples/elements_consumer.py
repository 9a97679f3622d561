"""The classic consumer: locks, gets and removes every element that is not locked yet.

    python examples/elements_producer.py embedded:/tmp/outbox
    python examples/elements_consumer.py embedded:/tmp/outbox

Any number of them may run at a time.
"""

import os
import sys

import fdbqueue

SCHEMA = {"body": "string", "header": "table?"}


def main() -> None:
    queue = fdbqueue.ElementQueue(fdbqueue.Subspace(("outbox",)), schema=SCHEMA)
    with fdbqueue.open(sys.argv[1]) as db:
        for name in queue.names(db):
            if not queue.lock(db, name):
                continue
            data = queue.get(db, name)
            print(f"# reading element {name}: {data['body']}, {len(data['header'])} lines of header")
            queue.remove(db, name)


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
