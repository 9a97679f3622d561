"""Filters of tasks as people type them, on the command line and in forms."""

from collections.abc import Mapping
from typing import Any

from fdbqueue.core.visible import key_of, shown, value_of

_TEXTS = ("state", "id", "group", "headers", "class", "queue")
"""Names with values that are texts."""
FIELDS = {
    "id": "Task id",
    "key": "Task key",
    "unique": "Unique key",
    "group": "Group id",
    "class": "Class of failure",
    "headers": "Header, NAME=VALUE",
    "data": "Data, PATH=VALUE",
}
"""The filters of a form, each with its label; beside them `state`."""


def searched(form: Mapping[str, str]) -> dict[str, str]:
    """Return the filled fields of a form that searches; empty for a form without a filter."""
    given = {name: text for name in FIELDS if (text := form.get(name, "").strip())}
    return given | ({"state": form["state"]} if given and form.get("state") else {})


def filters_of(search: Mapping[str, str]) -> dict[str, Any]:
    """Return the filters of fields. Raises ValueError."""
    filters = {}
    for field, text in search.items():
        name = field
        if field in ("headers", "data"):
            path, separator, text = text.partition("=")
            if not separator:
                raise ValueError(f"{FIELDS[field]} is wanted, not {shown(path)}")
            name = f"{field}.{path.strip()}" if path.strip() else field
        filters[name] = filter_value(name, text)
    return filters


def filter_value(name: str, text: str) -> Any:
    """Return the value of a filter, or an option, of that name. Raises ValueError."""
    first = name.partition(".")[0]
    if first in _TEXTS:
        return text.split(",") if name == "id" and "," in text else text
    return key_of(text) if first in ("key", "unique") else value_of(text)
