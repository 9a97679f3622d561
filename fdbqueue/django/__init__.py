"""A backend for Django's tasks (docs/django.md): `fdbqueue.django.FdbQueueBackend` in the setting TASKS.

With `fdbqueue.django` in INSTALLED_APPS, `manage.py fdbqueue_worker` runs the tasks. Needs the extra
`django`: `pip install fdbqueue[django]`.
"""

from fdbqueue import extras

with extras.needs("django", "django"):
    from fdbqueue.django.attempts import held_task as held_task
    from fdbqueue.django.backend import FdbQueueBackend as FdbQueueBackend
    from fdbqueue.django.backend import database as database
    from fdbqueue.django.backend import wait as wait
    from fdbqueue.django.databases import transaction as transaction
