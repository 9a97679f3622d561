"""Tasks. Tests import this module when Django is set up."""

import asyncio
import os
import time
from typing import Any

import fdbqueue
import fdbqueue.integrations.django
from fdbqueue.integrations.django import api
from tests.fleet import forking

if api.LOGGER == "django.tasks":
    from django.tasks import task
else:
    from django_tasks import task

ran: list[Any] = []
"""The values that tasks of this process were given."""


@task
def add(x: int, y: int) -> int:
    return x + y


@task
async def add_soon(x: int, y: int) -> int:
    await asyncio.sleep(0)
    return x + y


@task
def note(value: Any) -> None:
    ran.append(value)


@task(queue_name="mails", priority=20)
def mail(to: str) -> str:
    return f"sent to {to}"


@task(takes_context=True)
def tell_context(context: Any) -> list[Any]:
    result = context.task_result
    return [result.id, context.attempt, str(result.status), result.worker_ids]


class OddError(Exception):
    pass


@task
def fail(message: str) -> None:
    raise OddError(message)


@task
def leave() -> None:
    raise SystemExit(3)


@task
def give_a_set() -> set[int]:
    return {1}


@task
def give_too_much() -> str:
    return "x" * 8_000_001


@task(takes_context=True)
def try_again(context: Any) -> int:
    if context.attempt < 3:
        raise fdbqueue.Retry(0, "not yet")
    return int(context.attempt)


@task
def charge(key: str) -> int:
    """A step, and then a failure at the first attempt."""
    held = fdbqueue.integrations.django.held_task()
    assert held is not None
    done: int = held.step("charge", lambda: _counted(held.database, bytes.fromhex(key)))
    if held.attempts == 1:
        raise fdbqueue.Retry(0, "after the step")
    return done


@task
async def tell_held_task() -> str | None:
    held = fdbqueue.integrations.django.held_task()
    return None if held is None else held.id


@task
def count_once(key: str) -> None:
    raise fdbqueue.Done(lambda tr: tr.add(bytes.fromhex(key), b"\1"), "counted")


@task(takes_context=True)
def die_at_first(context: Any) -> int:
    """Killed at the first attempt: for workers that are processes."""
    if context.attempt == 1:
        os._exit(9)
    return int(context.attempt)


@task
def die() -> None:
    os._exit(9)


@task
def fork() -> None:
    """A child that a signal ends, and a child that returns into the worker."""
    forking.terminated()
    forking.returning()


@task
def wait_for_key(begun: str, key: str) -> None:
    """Set a key, and run until another one is set."""
    database = fdbqueue.integrations.django.database()
    database[bytes.fromhex(begun)] = b""
    while database[bytes.fromhex(key)] is None:
        time.sleep(0.01)


@task
def count_run(key: str) -> None:
    """Count the runs of this task, which is more than one if its worker dies."""
    fdbqueue.integrations.django.database().add(bytes.fromhex(key), b"\1\0\0\0")


def _counted(database: Any, key: bytes) -> int:
    database.add(key, b"\1")
    return int(database[key][0])
