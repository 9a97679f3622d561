"""The names that programs use: `python -m tests.public.names FILE` writes those of a release.

FILE, tests/public/RELEASE.json, is written at the tag, and not changed. A later release has all of its names,
or it deprecates them (docs/contract.md).
"""

import importlib
import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from prometheus_client import CollectorRegistry

import fdbqueue
from fdbqueue.integrations.prometheus import QueueCollector, measure
from fdbqueue.operate.cli.commands import cli
from tests.public import json_fields
from tests.public.classes import PLACES, is_of_a_framework

Names = Mapping[str, Sequence[str]]
"""By the name of a function, class, command or metric: its parameters, members, options, fields or labels."""


def of_python() -> Names:
    found: dict[str, Sequence[str]] = {}
    for place in PLACES:
        module = importlib.import_module(f"fdbqueue{place}")
        for name in getattr(module, "__all__", vars(module)):
            one = getattr(module, name)
            if not name.startswith("_") and getattr(one, "__module__", "").startswith("fdbqueue"):
                found |= _of(f"{module.__name__}.{name}", one)
    return found


def _of(name: str, one: Any) -> dict[str, Sequence[str]]:
    if not inspect.isclass(one):
        return {name: _parameters(one)} if callable(one) else {}
    if is_of_a_framework(one):  # the framework calls its members
        return {name: []}
    members = sorted(_members(one))
    found = {name: members}
    for member in members:
        value = getattr(one, member, None)
        if inspect.isroutine(value) and callable(value):  # a verb of the awaited face is no routine
            found[f"{name}.{member}"] = _parameters(value)
    return found


def _members(one: type) -> set[str]:
    """Those that classes of this package define: an error has others, of Python."""
    ours = [base for base in one.__mro__ if base.__module__.startswith("fdbqueue")]
    named = (name for base in ours for name in (*vars(base), *inspect.get_annotations(base)))
    return {name for name in named if not name.startswith("_")}


def _parameters(function: Any) -> Sequence[str]:
    """The names by which a program gives its arguments."""
    try:
        given = inspect.signature(function).parameters.values()
    except ValueError:  # written in C
        return []
    unnamed = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    )
    return [one.name for one in given if one.kind not in unnamed and one.name not in ("self", "cls")]


def of_the_command_line() -> Names:
    cli.load()
    return dict(_commands(cli, "fdbqueue"))


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, Sequence[str]]]:
    yield path, sorted(word for one in command.params if isinstance(one, click.Option) for word in one.opts)
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(below, f"{path} {name}")


def of_metrics() -> Names:
    """The labels of the metrics that have a sample on an empty database; of the others, the names."""
    registry = CollectorRegistry()
    with fdbqueue.open("memory:") as db, measure(registry):
        fdbqueue.TaskQueue.create(db, "q").put(db, 1)
        registry.register(QueueCollector(db))
        families = list(registry.collect())
    return {
        one.name: sorted({label for sample in one.samples for label in sample.labels}) for one in families
    }


def present() -> Mapping[str, Names]:
    named = {"python": of_python(), "commands": of_the_command_line(), "metrics": of_metrics()}
    return {**named, "json": json_fields.fields()}


def _text(found: Mapping[str, Names]) -> str:
    """JSON with a line for each name: a diff shows each change."""
    parts = (
        f"{json.dumps(what)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(names[name])}" for name in sorted(names))
        + "\n}"
        for what, names in found.items()
    )
    return "{" + ",\n".join(parts) + "}\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(_text(present()))
