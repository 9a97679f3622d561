"""The names of Django's tasks: of `django.tasks`, or before Django 6.0 of the package django-tasks."""

from importlib.util import find_spec

if find_spec("django.tasks") is not None:
    from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, checks, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTaskBackend, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json

    LOGGER = "django.tasks"
else:
    try:
        from django_tasks import checks  # it registers them; otherwise the app `django_tasks` would have to
    except ModuleNotFoundError as missing:
        if missing.name != "django_tasks":
            raise
        message = "this Django has no tasks: pip install django-tasks, or use Django 6.0"
        raise ModuleNotFoundError(message, name="django_tasks") from None
    from django_tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    LOGGER = "django_tasks"

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "LOGGER",
    "BaseTaskBackend",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "checks",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
