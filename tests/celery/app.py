"""The Celery application of the tests; a worker process and a test import it."""

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

import fdbqueue.integrations.celery

BROKER, SEEN, QUEUE = os.environ["BROKER"], Path(os.environ["SEEN"]), os.environ["NAME"]
app: Any = Celery("tests.celery.app", broker=BROKER, backend=BROKER)
app.conf.update(
    task_acks_late=os.environ.get("ACKS", "late") == "late",
    worker_prefetch_multiplier=int(os.environ.get("PREFETCH", "1")),
    broker_transport_options={"session_ttr": 2},
    result_expires=600,
    worker_proc_alive_timeout=120,
    task_default_queue=QUEUE,
    control_exchange=f"{QUEUE}.control",
    event_exchange=f"{QUEUE}.events",
)
if "START" in os.environ:
    app.conf.worker_pool_start_method = os.environ["START"]


def seen() -> list[str]:
    """The lines that tasks have written, in order."""
    return SEEN.read_text().split() if SEEN.exists() else []


@app.task
def note(word: str) -> str:
    with SEEN.open("a") as lines:
        lines.write(f"{word}\n")
    return word


@app.task
def add(one: int, other: int) -> int:
    return one + other


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def shape(results: Any) -> Any:
    return results


@app.task
def fail() -> None:
    raise ValueError("no such luck")


@app.task
def process_id() -> int:
    return os.getpid()


@app.task
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return time.time()


@app.task
def run_at() -> float:
    return time.time()


@app.task(bind=True, max_retries=3)
def third_time_lucky(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0.1)
    return int(self.request.retries)


@app.task
def note_in_a_transaction(word: str, commits: bool) -> None:
    """Put a task within a transaction of the database of the broker, which may be given up."""
    with fdbqueue.integrations.celery.database(BROKER) as database:  # which does not close it
        tr = database.create_transaction()
        with fdbqueue.integrations.celery.transaction(tr):
            note.delay(word)
        if commits:
            tr.commit().wait()
