"""The application of Celery that `benchmarks.frameworks` measures: a process of it is a worker."""

import os
from typing import Any

from celery import Celery

import fdbqueue.integrations.celery  # noqa: F401  # registers the broker

WORKERS = (
    ("celery", "--app", "benchmarks.celery_tasks", "worker", "--concurrency", "2", "--loglevel", "ERROR"),
)
PATIENCE_S = 120.0


def address_of(url: str) -> str:
    engine, _, place = url.partition(":")
    return url if engine == "redis" else f"fdbqueue+{engine}://{place}"


ADDRESS = address_of(os.environ["BENCHMARK_BROKER"])
app: Any = Celery("benchmarks.celery_tasks", broker=ADDRESS, backend=ADDRESS)
app.conf.task_acks_late = True


@app.task
def number(given: int) -> int:
    return given


def send(given: int) -> Any:
    return number.delay(given)


def ended(sent: Any) -> float:
    sent.get(timeout=PATIENCE_S)
    at: float = sent.date_done.timestamp()
    return at
