"""The application that `benchmarks.frameworks` measures: a process of it is a Celery worker."""

import os
from typing import Any

from celery import Celery

import fdbqueue.celery  # noqa: F401  # registers the broker

URL = os.environ["BENCHMARK_BROKER"]
app: Any = Celery("benchmarks.celery_tasks", broker=URL, backend=URL)
app.conf.task_acks_late = True


@app.task
def number(given: int) -> int:
    return given
