"""Imports that come late, and those that need an extra.

Names and files of a package are imported when they are first used (PEP 562). An extra has packages that one
part of fdbqueue needs, and the others do without.
"""

import builtins
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str], all_of: str = ""
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of a package.

    `homes`: the names in each module of the package, parted by spaces. `all_of`: a module that
    the package has as a name, and with it all public names of that module. A star import hides no builtin.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def import_name(name: str) -> Any:
        """Return the value of a name, and keep it: the next use costs nothing."""
        value = _value(name)
        setattr(import_module(package), name, value)
        return value

    def _value(name: str) -> Any:
        if name in home_of:
            return getattr(import_module(f"{package}.{home_of[name]}"), name)
        is_special = name.startswith("__") and name != "__all__"
        more = import_module(f"{package}.{all_of}") if all_of and not is_special else None
        if more is not None and name == all_of.rpartition(".")[2]:
            return more
        if name == "__all__":
            return sorted({*home_of, *getattr(more, name, ())} - vars(builtins).keys())
        if name in getattr(more, "__all__", ()):
            return getattr(more, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return import_name, lambda: sorted({*vars(import_module(package)), *home_of, *import_name("__all__")})


def files_of(room: str) -> Callable[[str], ModuleType]:
    """Make `__getattr__` of a room: a file is imported when it is first used as an attribute.

    From then on the room has it as an attribute, so later uses cost nothing more.
    """

    def import_file(name: str) -> ModuleType:
        try:
            if not name.startswith("_"):
                return import_module(f"{room}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{room}.{name}":
                raise
        raise AttributeError(f"module {room!r} has no attribute {name!r}")

    return import_file


@contextmanager
def needs(name: str, *modules: str) -> Iterator[None]:
    """For the imports of a part: an error that one of `modules` is missing names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name not in modules:
            raise
        message = f"{missing.name} is not installed: pip install 'fdbqueue[{name}]'"
        raise ModuleNotFoundError(message, name=missing.name) from None
