"""Texts: numbers, times and data as short texts, visible and of bounded length. Templates escape them."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from fdbqueue.core import limits
from fdbqueue.core.unreadable import Unreadable
from fdbqueue.core.visible import shortened, shown, visible
from fdbqueue.core.visible import span as whole_span

CELL_LENGTH = 120
_PLAIN = re.compile(r"[A-Za-z0-9_-]")
_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")


@dataclass(frozen=True, slots=True)
class PayloadText:
    text: str
    form: str
    """"json", "text", "bytes", "object" or "unreadable"."""
    is_cut: bool = False
    """True if there is more than `text` shows."""


def span(seconds: float | None) -> str:
    """A length of time, with a fraction below ten seconds: 0.4s, 42s, 3m10s; empty for None."""
    return f"{seconds:.1f}s" if seconds is not None and 0 < seconds < 10 else whole_span(seconds)


def number(value: float | None) -> str:
    """A number with its thousands apart; a fraction with one digit below 100. Empty for None."""
    if value is None:
        return ""
    if isinstance(value, int) or value >= 100 or value == 0:
        return f"{round(value):,}"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def short(value: float) -> str:
    """A number of at most three or four digits: 1,204, 81.2k, 1.84M, 3.1G."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= (size if unit != "k" else 10_000):
            return f"{value / size:,.3g}{unit}" if value < 1000 * size else f"{value / size:,.0f}{unit}"
    return number(value)


def moment(time: float | None) -> str:
    """A time in UTC: 2026-01-31 23:59:59; empty for None."""
    if time is None:
        return ""
    try:
        return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return shown(time)


def cell(data: Any) -> str:
    return shortened(" ".join(payload_text(data, indent=0).text.split()), CELL_LENGTH)


def key(value: Any) -> str:
    """A task key, or a unique key; empty for None."""
    return "" if value is None else cell(value)


def class_name(error: str | None) -> str:
    """The name of a class of failure; None stands for the classes beyond the listed ones."""
    return "(other classes)" if error is None else one_line(error) or "(no failure)"


def one_line(text: str | None) -> str:
    """A text of data as one visible line."""
    return "" if text is None else visible(shortened(text, limits.SHOWN_PAYLOAD_LENGTH))


def lines(text: str) -> str:
    """A text of data with its line breaks, other control characters as escapes."""
    return visible(shortened(text, limits.SHOWN_PAYLOAD_LENGTH), keep="\n\t")


def payload_text(data: Any, indent: int = 2) -> PayloadText:
    if isinstance(data, Unreadable):
        return PayloadText(visible(shortened(str(data))), "unreadable")
    if isinstance(data, bytes):
        return _bytes_text(data)
    encoded = json_of(data, indent)
    if encoded is None:
        return PayloadText(shown(data), "object")
    return _cut(encoded, "json")


def json_of(data: Any, indent: int = 2) -> str | None:
    """The data as JSON; None if JSON has no such value."""
    try:
        encoded = msgspec.json.encode(data)
        return (msgspec.json.format(encoded, indent=indent) if indent else encoded).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None


def _bytes_text(data: bytes) -> PayloadText:
    most = limits.SHOWN_PAYLOAD_LENGTH
    try:
        return _cut(data.decode(), "text")
    except UnicodeDecodeError:
        return PayloadText(data[: most // 2].hex(" ", -4), "bytes", len(data) > most // 2)


def _cut(text: str, form: str) -> PayloadText:
    most = limits.SHOWN_PAYLOAD_LENGTH
    return PayloadText(visible(text[:most], keep="\n\t"), form, len(text) > most)


def segment(name: str) -> str:
    """A queue's name as one segment of a path. Others than letters, digits, - and _ become ~XX. A percent
    sign would not do: servers decode it before they look for slashes, and browsers remove "..".
    """
    return "".join(
        letter if _PLAIN.fullmatch(letter) else "".join(f"~{byte:02X}" for byte in letter.encode())
        for letter in name
    )


def name_in(part: str) -> str:
    """The name in a segment of a path. A segment that was typed by hand may have any other character."""
    return _ESCAPED.sub(_decoded, part)


def _decoded(found: re.Match[str]) -> str:
    try:
        return bytes.fromhex(found.group().replace("~", "")).decode()
    except UnicodeDecodeError:
        return found.group()
