"""An application to begin with: `python emails.py` makes its queue, `fdbqueue work emails emails:handle`
works. Run again, it finds the queue and leaves it as it is.
"""

import fdbqueue


def handle(task: fdbqueue.Task) -> None:
    """The handler of the worker; after an exception the task comes back, with a delay."""
    print(f"to {task.data['to']}: welcome", flush=True)


if __name__ == "__main__":
    with fdbqueue.open() as db:
        fdbqueue.TaskQueue.create(db, "emails", "fifottl", ttr=60, if_not_exists=True)
