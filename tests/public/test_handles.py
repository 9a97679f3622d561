"""A queue, a database and each other handle tells its name and its URL, and is neither pickled nor copied."""

import copy
import pickle
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

import fdbqueue
from fdbqueue import NotCopied, aio
from fdbqueue.core.database import public_url
from tests.aio.support import on_loop
from tests.public.classes import is_error, is_interface, is_of_a_framework, public_classes
from tests.public.handles import awaited_handles, blocking_handles

WAYS: tuple[Callable[[Any], Any], ...] = (pickle.dumps, copy.copy, copy.deepcopy)


@pytest.fixture
def memory() -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:") as database:
        yield database


def refuse_copies(handle: Any) -> None:
    for way in WAYS:
        with pytest.raises(NotCopied, match="opens it by the URL") as refused:
            way(handle)
        assert isinstance(refused.value, TypeError)


def test_a_handle_is_neither_pickled_nor_copied(memory: fdbqueue.Database) -> None:
    for handle in blocking_handles(memory).values():
        refuse_copies(handle)


@on_loop
async def test_an_awaited_handle_is_neither_pickled_nor_copied() -> None:
    async with aio.open("memory:") as db:
        for handle in awaited_handles(db).values():
            refuse_copies(handle)


def test_a_handle_tells_its_name_and_its_url(memory: fdbqueue.Database) -> None:
    handles = blocking_handles(memory)
    assert repr(handles["Database"]) == "Database(url='memory:')"
    assert repr(handles["TaskQueue"]) == "TaskQueue(name='q', kind='fifottl', url='memory:')"
    assert repr(handles["TaskProducer"]) == "TaskProducer(name='q', kind='fifottl', url='memory:')"
    assert repr(handles["Queue"]) == "Queue(name='plain')"
    assert repr(handles["Schedule"]) == "Schedule(name='s', url='memory:')"
    assert repr(handles["Worker"]) == "Worker(queues=['q'], state='new', url='memory:')"
    assert all(repr(one).startswith(f"{name}(") for name, one in handles.items())


@on_loop
async def test_an_awaited_handle_tells_its_name_and_its_url() -> None:
    async with aio.open("memory:") as db:
        handles = awaited_handles(db)
        assert repr(db) == "aio.Database(url='memory:')"
        assert repr(handles["TaskQueue"]) == "aio.TaskQueue(name='q', kind='fifottl', url='memory:')"
        assert all(repr(one).startswith(f"aio.{name}(") for name, one in handles.items())


MAY_HAVE_ANY_ATTRIBUTE = {
    "fdbqueue.Database": "the databases that are lent share one __dict__",
    "fdbqueue.LogFields": "a filter of logging, whose objects have a __dict__",
    "fdbqueue.RealRuntime": "a program replaces methods of a runtime in its tests",
    "fdbqueue.TaskFunction": "it has the attributes of its function",
    "fdbqueue.embedded.Database": "it stands for the database of the binding, which takes any",
    "fdbqueue.embedded.Transaction": "it stands for the transaction of the binding, which takes any",
}


def test_an_unknown_attribute_of_a_public_object_is_refused() -> None:
    """Errors, interfaces, classes of frameworks and parts of the simulation apart."""
    classes = public_classes()
    open_ones = {name for name, one in classes.items() if one.__dictoffset__ and not is_apart(name, one)}
    assert open_ones == set(MAY_HAVE_ANY_ATTRIBUTE)


def is_apart(name: str, one: type) -> bool:
    simulated = name.startswith("fdbqueue.testing.")
    return simulated or is_error(one) or is_interface(one) or is_of_a_framework(one) or issubclass(one, Enum)


def test_an_option_cannot_be_set_on_a_handle(memory: fdbqueue.Database) -> None:
    for name, handle in blocking_handles(memory).items():
        if name != "Database":
            with pytest.raises(AttributeError):
                handle.time_to_run = 5
    queue: Any = fdbqueue.TaskQueue.open(memory, "q")
    with pytest.raises(AttributeError):
        queue.ttr = 5


@on_loop
async def test_an_option_cannot_be_set_on_an_awaited_handle() -> None:
    async with aio.open("memory:") as db:
        for handle in awaited_handles(db).values():
            with pytest.raises(AttributeError):
                handle.ttr_s = 5


def test_a_url_is_told_without_its_secrets() -> None:
    assert (
        public_url("fdb://ann:pass@host/x?token=abc&durability=soon")
        == "fdb://***@host/x?token=***&durability=soon"
    )
    assert public_url("embedded:./data?durability=soon") == "embedded:./data?durability=soon"


def test_a_handle_that_is_not_whole_can_be_told() -> None:
    """A debugger shows it before the end of its constructor."""
    assert repr(object.__new__(fdbqueue.TaskQueue)) == "TaskQueue()"
