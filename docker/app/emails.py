"""An application to begin with: `python emails.py` makes its queue, `fdbqueue work emails emails:handle`
works. Run again, it finds the queue and leaves it as it is.
"""

import fdbqueue


def handle(task: fdbqueue.Task) -> None:
    """What a worker does with a task; an exception here brings the task back, after a while."""
    print(f"to {task.data['to']}: welcome", flush=True)


if __name__ == "__main__":
    with fdbqueue.open() as db:
        fdbqueue.TaskQueue.create(db, "emails", "fifottl", ttr=60, if_not_exists=True)
