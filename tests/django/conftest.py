"""A Django without a project, and a backend of its own for each test: another namespace of the database."""

import importlib
import os
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import django
import pytest
from django.conf import settings
from django.test.utils import override_settings

import fdbqueue

SETTINGS = {
    "INSTALLED_APPS": ["fdbqueue.integrations.django"],
    "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    "LOGGING_CONFIG": None,  # pytest has the log
    "USE_TZ": True,
}


@pytest.fixture(scope="session", autouse=True)
def _django() -> None:
    settings.configure(**SETTINGS)
    django.setup()


@pytest.fixture
def options(db: fdbqueue.Database) -> dict[str, Any]:
    """The OPTIONS of the backend."""
    return {"url": db, "namespace": f"django-{os.urandom(4).hex()}", "session_ttr": 2}


@pytest.fixture
def backend(options: dict[str, Any]) -> Iterator[Any]:
    """The backend that tasks have by default, in a database of each engine."""
    with override_settings(TASKS=tasks_setting(options)):
        yield importlib.import_module("fdbqueue.integrations.django").backend.backend_of("default")


def tasks_setting(options: dict[str, Any], **more: Any) -> dict[str, Any]:
    default = {"BACKEND": "fdbqueue.integrations.django.FdbQueueBackend", "QUEUES": ["default", "mails"]}
    return {"default": default | {"OPTIONS": options} | more}


@pytest.fixture
def jobs(backend: Any) -> ModuleType:  # noqa: ARG001  # the tasks of the module are checked by it
    return importlib.import_module("tests.django.jobs")


@pytest.fixture
def work(backend: Any) -> Callable[..., fdbqueue.Worker]:
    """Run all tasks that are there, and return the worker."""

    def work(*names: str, threads: int = 2, **options: Any) -> fdbqueue.Worker:
        working = importlib.import_module("fdbqueue.integrations.django.management.commands.fdbqueue_worker")
        worker: fdbqueue.Worker = working.worker_of(backend, names or ["default"], threads, 30, **options)
        worker.run(until_empty=True)
        return worker

    return work


@pytest.fixture
def heard() -> Iterator[list[tuple[str, Any]]]:
    """The signals of tasks: the status and the result in each."""
    api = importlib.import_module("fdbqueue.integrations.django.api")
    said: list[tuple[str, Any]] = []

    def hear(task_result: Any, **_: Any) -> None:
        said.append((str(task_result.status), task_result))

    signals = [api.task_enqueued, api.task_started, api.task_finished]
    for signal in signals:
        signal.connect(hear)
    yield said
    for signal in signals:
        signal.disconnect(hear)
