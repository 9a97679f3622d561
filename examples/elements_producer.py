"""The classic producer: a hundred elements, each with the environment as its header.

python examples/elements_producer.py embedded:/tmp/outbox
python examples/elements_consumer.py embedded:/tmp/outbox
"""

import os
import sys

import fdbqueue

SCHEMA = {"body": "string", "header": "table?"}


def main() -> None:
    queue = fdbqueue.ElementQueue(fdbqueue.Subspace(("outbox",)), schema=SCHEMA)
    with fdbqueue.open(sys.argv[1]) as db:
        for count in range(1, 101):
            name = queue.add(db, {"body": f"element {count}", "header": dict(os.environ)})
            print(f"# added element {count} as {name}")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
