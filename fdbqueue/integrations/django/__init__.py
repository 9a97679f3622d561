"""A backend for Django's tasks (docs/django.md).

The setting TASKS names `fdbqueue.integrations.django.FdbQueueBackend`. With `fdbqueue.integrations.django` in
INSTALLED_APPS, `manage.py fdbqueue_worker` runs the tasks. Needs the extra `django`:
`pip install fdbqueue[django]`.
"""

from fdbqueue.core import lazy

with lazy.needs("django", "django"):
    from fdbqueue.integrations.django.backend import FdbQueueBackend as FdbQueueBackend
    from fdbqueue.integrations.django.backend import database as database
    from fdbqueue.integrations.django.backend import held_task as held_task
    from fdbqueue.integrations.django.backend import transaction as transaction
    from fdbqueue.integrations.django.backend import wait as wait
