"""The app `fdbqueue.integrations.django`: it brings the command `fdbqueue_worker`."""

from django.apps import AppConfig


class FdbQueueConfig(AppConfig):
    name = "fdbqueue.integrations.django"
    label = "fdbqueue"
    verbose_name = "fdbqueue"
