"""Values, keys and filters of tasks as people type them: JSON, or else text."""

from collections.abc import Mapping
from typing import Any

import msgspec

from fdbqueue.core.visible import shown

_TEXTS = ("state", "id", "group", "headers", "class", "queue")
"""Names with values that are texts."""
_JSON_BEGINS = ("{", "[", '"')


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
        return text
    return key_of(text) if first in ("key", "unique") else value_of(text)


def value_of(text: str, as_text: bool = False) -> Any:
    """Return the value of `text`: that of JSON, or else the text itself.

    Raises ValueError for a text that begins like an object, a list or a quoted string, but is not JSON.
    """
    if as_text:
        return text
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError(f"{shown(text)} is nested too deeply") from None
    except msgspec.DecodeError as reason:
        if text.lstrip().startswith(_JSON_BEGINS):
            raise ValueError(f"{shown(text)} is not JSON ({reason}); --text takes it as it is") from None
        return text


def key_of(text: str, as_text: bool = False) -> Any:
    """Return the key of `text`: its value, with a tuple for each list, since JSON has no tuples.

    Raises ValueError, as `value_of`.
    """
    value = value_of(text, as_text)
    try:
        return _tuples(value)
    except RecursionError:
        raise ValueError(f"{shown(text)} is nested too deeply") from None


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
