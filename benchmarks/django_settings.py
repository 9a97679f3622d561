"""The project of Django that `benchmarks.frameworks` measures: its tasks are in the broker that it names."""

import os
from importlib.util import find_spec
from typing import Any

URL = os.environ["BENCHMARK_BROKER"]
ON_REDIS = URL.startswith("redis")


def of_redis() -> dict[str, Any]:
    return {"BACKEND": "django_tasks_rq.RQBackend"}


def of_fdbqueue() -> dict[str, Any]:
    return {"BACKEND": "fdbqueue.integrations.django.FdbQueueBackend", "OPTIONS": {"url": URL}}


def apps() -> list[str]:
    tasks = [] if find_spec("django.tasks") else ["django_tasks"]
    return [*tasks, *(["django_rq", "django_tasks_rq"] if ON_REDIS else ["fdbqueue.integrations.django"])]


USE_TZ = True
INSTALLED_APPS = apps()
TASKS = {"default": of_redis() if ON_REDIS else of_fdbqueue()}
RQ_QUEUES = {"default": {"URL": URL}} if ON_REDIS else {}
