"""The atomic operations as methods, made from the binding's table for a transaction and for a database."""

from collections.abc import Callable
from typing import Any

from fdbqueue.embedded.options import MUTATIONS


def _mutation(name: str, opcode: int) -> Callable[..., None]:
    def operation(self: Any, key: Any, param: Any) -> None:
        self._atomic_operation(opcode, key, param)

    operation.__name__ = name
    operation.__doc__ = f"The atomic operation {name}: see the binding's documentation."
    return operation


def add_mutations(owner: type) -> None:
    """Add a method for each atomic operation to a class, and its alias with `bit_`, as the binding does."""
    for name, opcode in MUTATIONS.items():
        setattr(owner, name, _mutation(name, opcode))
        setattr(owner, f"bit_{name}", _mutation(f"bit_{name}", opcode))
