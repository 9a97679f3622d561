"""Django's tests of the backend that runs tasks at once, on ours: a program, as settings are of a process."""

import importlib
import sys
from typing import Any

import django
from django.conf import settings
from django.test.utils import override_settings

TASKS = {"default": {"BACKEND": "ours.AtOnce", "QUEUES": [], "OPTIONS": {"url": "memory:"}}}
sys.modules["ours"] = sys.modules[__name__]
settings.configure(
    USE_TZ=True, INSTALLED_APPS=["fdbqueue.integrations.django"], LOGGING_CONFIG=None, TASKS=TASKS
)

from fdbqueue.integrations.django import FdbQueueBackend  # noqa: E402  # needs the settings
from fdbqueue.integrations.django.management.commands.fdbqueue_worker import worker_of  # noqa: E402


class AtOnce(FdbQueueBackend):
    """Our backend, with a worker that runs each task before `enqueue` returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        worker_of(self, [task.queue_name], threads=1, grace_s=10).run(until_empty=True)
        result.refresh()
        return result


django.setup()
theirs = importlib.import_module("tasks.test_immediate_backend")  # of Django's source distribution


@override_settings(TASKS=TASKS)
class OursTestCase(theirs.ImmediateBackendTestCase):  # type: ignore[name-defined, misc]  # Django has no types
    # Asks for the class of the other backend.
    test_using_correct_backend = None
    # An interrupt ends a thread of the worker, and not the call.
    test_throws_keyboard_interrupt = None
    # Ours can do these.
    test_cannot_get_result = test_cannot_refresh_result = test_cannot_pass_run_after = None


if __name__ == "__main__":
    from django.test.runner import DiscoverRunner

    sys.exit(DiscoverRunner(verbosity=1).run_tests(["ours.OursTestCase"]))
