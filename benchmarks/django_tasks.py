"""The tasks of Django that `benchmarks.frameworks` measures. On Redis they are jobs of RQ.

The default worker of RQ forks a process for each job; its SimpleWorker does not, and is faster.
"""

import os
import time
from typing import Any

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.django_settings"
django.setup()

from benchmarks.django_settings import ON_REDIS  # noqa: E402  # it is one of the settings
from fdbqueue.integrations.django import wait  # noqa: E402  # it needs the settings

try:
    from django.tasks import task
except ModuleNotFoundError:  # Django 5.2, with the package django-tasks
    from django_tasks import task

_OF_REDIS = ("rqworker", "default", "--job-class", "django_tasks_rq.Job", "--worker-class", "rq.SimpleWorker")
_OF_FDBQUEUE = ("fdbqueue_worker", "--threads", "1", "--verbosity", "0")
WORKERS = (("django", *(_OF_REDIS if ON_REDIS else _OF_FDBQUEUE)),) * 2
PATIENCE_S = 120.0


@task
def number(given: int) -> float:  # noqa: ARG001  # the payload is all that it is for
    return time.time()


def send(given: int) -> Any:
    return number.enqueue(given)


def ended(sent: Any) -> float:
    if ON_REDIS:
        _poll(sent)
    else:
        wait(sent, timeout=PATIENCE_S)
    at: float = sent.return_value
    return at


def _poll(sent: Any) -> None:
    """RQ's backend has no wait."""
    until_s = time.monotonic() + PATIENCE_S
    while not sent.is_finished:
        if time.monotonic() > until_s:
            raise TimeoutError(sent.id)
        time.sleep(0.01)
        sent.refresh()
