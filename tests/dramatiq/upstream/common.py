"""The helpers that Dramatiq's own tests import; its source distribution leaves this file out."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dramatiq
import pika
import pytest

RABBITMQ_CREDENTIALS = pika.PlainCredentials("guest", "guest")


def _never(function: Any) -> Any:
    return function


skip_on_windows = skip_on_pypy = skip_in_ci = _never
skip_unless_rabbit_mq = pytest.mark.skip(reason="about RabbitMQ")


@contextmanager
def worker(*arguments: Any, **options: Any) -> Iterator[dramatiq.Worker]:
    """A running worker, which is stopped at the end of the block."""
    running = dramatiq.Worker(*arguments, **options)
    running.start()
    try:
        yield running
    finally:
        running.stop()
