"""The classes of fdbqueue.aio have the verbs and the signatures of the blocking ones."""

import inspect
from typing import Any

import pytest

import fdbqueue
from fdbqueue import aio
from fdbqueue.aio.verbs import Iteration, Maker, Verb

FACES = [
    "DeadLetters",
    "ElementQueue",
    "FairConsumer",
    "FairProducer",
    "FairQueue",
    "Fleet",
    "NullQueue",
    "Overview",
    "PersistentQueue",
    "Proxy",
    "Queue",
    "QueueConsumer",
    "QueueProducer",
    "QueueSet",
    "Schedule",
    "Session",
    "SimpleElementQueue",
    "TaskConsumer",
    "TaskProducer",
    "TaskQueue",
]
FUNCTIONS = ["diagnose", "fire_due", "list_queues", "list_schedules", "statistics", "verify", "workers"]
# Verbs that have no awaited form, with the reason.
LEFT_OUT = {
    ("QueueConsumer", "holder"): "as that of Queue",
    ("Queue", "holder"): "it is for a reader that may crash between two lines of a pipe",
    **dict.fromkeys((("FairConsumer", "holder"), ("FairQueue", "holder")), "as that of Queue"),
    ("Session", "ask"): "it returns a check within a blocking transaction",
}
SET_BY_INIT = {"id", "lost", "name", "path", "ttr"}
CONSTANTS = {"granularity", "maxelts", "rndhex", "umask"}
KEEPS_ASIDE = {"aside", "remove_aside", "unreadable"}  # of all element queues but this one
OWN = {"blocking", "over", "consume", "hub"}


def public(owner: type) -> set[str]:
    """The public names of a class, without the slots that `__init__` fills."""
    names = (name for name in dir(owner) if not name.startswith("_"))
    return {name for name in names if not inspect.ismemberdescriptor(inspect.getattr_static(owner, name))}


@pytest.mark.parametrize("name", FACES)
def test_a_face_has_every_public_name_of_its_class(name: str) -> None:
    blocking, awaited = public(getattr(fdbqueue, name)), public(getattr(aio, name))
    left_out = {verb for owner, verb in LEFT_OUT if owner == name}

    assert blocking - awaited - SET_BY_INIT - CONSTANTS == left_out
    assert awaited - blocking - SET_BY_INIT - OWN == (KEEPS_ASIDE if name == "NullQueue" else set())


@pytest.mark.parametrize("name", [name for name in FACES if name != "NullQueue"])
def test_a_verb_has_the_signature_of_its_method(name: str) -> None:
    face, blocking = getattr(aio, name), getattr(fdbqueue, name)
    for verb in public(face) & public(blocking):
        own, theirs = inspect.getattr_static(face, verb), inspect.getattr_static(blocking, verb)
        if isinstance(own, Verb | Iteration | Maker):
            assert signature(own.__wrapped__) == signature(theirs), verb  # type: ignore[union-attr]
        elif inspect.isfunction(own) and verb != "transaction":
            assert names(own) == names(theirs), verb


@pytest.mark.parametrize("name", FACES)
def test_a_constructor_has_the_signature_of_its_class(name: str) -> None:
    face, blocking = getattr(aio, name), getattr(fdbqueue, name)

    if "__init__" in vars(face):
        assert inspect.signature(face) == inspect.signature(blocking)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_signature_of_the_blocking_one(name: str) -> None:
    assert inspect.signature(getattr(aio, name)) == inspect.signature(getattr(fdbqueue, name))


def test_open_has_the_options_of_the_blocking_one() -> None:
    assert set(names(fdbqueue.open)) - set(names(aio.open)) == {"runtime"}


def test_both_decorators_have_the_same_options() -> None:
    assert names(aio.transactional) == names(fdbqueue.transactional)


def signature(method: Any) -> inspect.Signature:
    plain = method.__func__ if isinstance(method, classmethod | staticmethod) else method
    found = inspect.signature(plain)
    bound = [parameter for parameter in found.parameters.values() if parameter.name not in ("self", "cls")]
    return found.replace(parameters=bound)


def names(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)
