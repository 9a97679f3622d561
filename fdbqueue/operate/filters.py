"""Values, keys and filters of tasks as people type them: JSON, or else text."""

from typing import Any

import msgspec

from fdbqueue.core.visible import shown

_TEXTS = ("state", "id", "group", "headers", "class", "queue")
"""Names with values that are texts."""
_JSON_BEGINS = ("{", "[", '"')


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
