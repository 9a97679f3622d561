"""Each public error, verdict and value comes back equal from pickle, from a copy and from a process pool."""

import copy
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import msgspec
import pytest

from fdbqueue import Retry
from tests.public.classes import (
    examples_of,
    is_error,
    is_value,
    public_classes,
)

CLASSES = {name: one for name, one in public_classes().items() if is_value(one)}
COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def values() -> Sequence[Any]:
    return [value for one in CLASSES.values() for value in examples_of(one)]


def seen(value: Any) -> tuple[Any, ...]:
    """All that a program sees of a value: itself, if its class knows which values are equal."""
    if type(value).__eq__ not in (object.__eq__, msgspec.Struct.__eq__):
        slots = getattr(type(value), "__slots__", ()) if isinstance(value, list | dict) else ()
        beside = [getattr(value, name) for name in slots]
        return type(value), value, vars(value) if hasattr(value, "__dict__") else beside
    names = {name for name in dir(type(value)) if not name.startswith("__")}
    attributes = {name: getattr(value, name, None) for name in names | set(getattr(value, "__dict__", ()))}
    return type(value), str(value), [(name, one) for name, one in attributes.items() if not callable(one)]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_value_is_equal_after_pickle_and_copies(name: str) -> None:
    for value in examples_of(CLASSES[name]):
        for how, copied in COPIES.items():
            assert seen(copied(value)) == seen(value), how


def echo(value: Any) -> Any:
    return value


def fail(error: BaseException) -> None:
    raise error


def test_a_process_pool_gives_values_and_errors_back() -> None:
    """An error that could not be read in the parent would break the pool for all later calls."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        given = values()
        returned = [pool.submit(echo, value) for value in given]
        failed = [(value, pool.submit(fail, value)) for value in given if is_error(type(value))]
        assert [seen(each.result()) for each in returned] == [seen(value) for value in given]
        assert [seen(each.exception()) for _, each in failed] == [seen(value) for value, _ in failed]


def test_a_verdict_of_a_program_survives_pickle() -> None:
    """Its class has a constructor of its own."""
    error = pickle.loads(pickle.dumps(Throttled("acme")))

    assert (error.tenant, error.delay, str(error)) == ("acme", 5, "acme is throttled")


class Throttled(Retry):
    def __init__(self, tenant: str) -> None:
        super().__init__(5, f"{tenant} is throttled")
        self.tenant = tenant
