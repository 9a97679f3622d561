"""Texts that come from data, for terminals, pipes, logs and messages: visible, and of bounded length.

An escape sequence in a queue's name could recolour a terminal, rename its window, or write over its lines. A
line break in an error's text could forge a line of a log.

The functions at the end read texts that people type: values and keys, as JSON or else as text.
"""

import reprlib
import unicodedata
from typing import Any

import msgspec


def counted(count: int, noun: str) -> str:
    """The count with its thousands apart, and the noun in the singular or with an s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def span(seconds: float | None) -> str:
    """A length of time as a short text: 42s, 3m10s, 2h5m, 4d3h; empty for None."""
    if seconds is None:
        return ""
    whole = max(0, int(seconds))
    for size, unit, below, smaller in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size}{unit}{f'{rest}{smaller}' if rest else ''}"
    return f"{whole}s"


HIDDEN = "***"
"""In place of a value that a redaction hides (redaction.py)."""
SHOWN_LENGTH_MAX = 200
"""Characters of one value in a message."""
TOLD_LENGTH_MAX = 400
"""Characters of one text in a message."""
_DIGITS_MAX = 60
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_SHORT = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}


def visible(text: str, keep: str = "") -> str:
    """`text` with its control and format characters as escapes, those in `keep` apart.

    These are C0, DEL, C1, what sets the direction of writing or has no width, line separators and surrogates.
    """
    if text.isprintable():
        return text
    return text.translate({ord(one): _visible(one) for one in _hidden_in(text) if one not in keep})


def visible_json(text: str) -> str:
    """Replace such characters in the strings of a JSON text by escapes of JSON: its value stays the same."""
    return text.translate({ord(one): _escaped(one) for one in _hidden_in(text)})


def shortened(text: str, length_max: int = SHOWN_LENGTH_MAX) -> str:
    """At most `length_max` characters: the beginning and the end of a longer text."""
    if len(text) <= length_max:
        return text
    half = (length_max - 3) // 2
    return f"{text[: length_max - 3 - half]}...{text[len(text) - half :]}"


def shown(value: Any) -> str:
    """A short `repr` of any value, in one line of visible characters; it never raises."""
    try:
        return _short(_short_repr(value), SHOWN_LENGTH_MAX)
    except Exception:  # of a repr that the caller wrote, or one that is nested too deeply
        return f"<{type(value).__name__}>"


def told(value: Any) -> str:
    """A text unchanged, any other value as `shown`; both shortened and visible."""
    return _short(value, TOLD_LENGTH_MAX) if type(value) is str else shown(value)


def _short(text: str, length_max: int) -> str:
    # Cut before and after: escapes make it longer, and a text of megabytes would take seconds.
    return shortened(visible(shortened(text, length_max)), length_max)


def _hidden_in(text: str) -> set[str]:
    return {character for character in set(text) if unicodedata.category(character) in _INVISIBLE}


def _escaped(character: str) -> str:
    """As JSON writes it: a character beyond the first plane as two surrogates."""
    units = character.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _visible(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return _SHORT.get(character, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class _ShortRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 5
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = 8
        self.maxstring = self.maxother = SHOWN_LENGTH_MAX

    def repr_int(self, value: int, _: int) -> str:
        if abs(value) < 10**_DIGITS_MAX:
            return repr(value)
        # Python refuses to print a number with thousands of digits, and takes long.
        return f"{'-' if value < 0 else ''}<a number of {value.bit_length()} bits>"

    def repr_bytes(self, value: bytes, _: int) -> str:
        return shortened(repr(value[: SHOWN_LENGTH_MAX + 1]))


_short_repr = _ShortRepr().repr


SURVIVED = (Exception, SystemExit)
"""SystemExit is among them: a callback that calls sys.exit would end the thread without a word."""


def text_of(said: object) -> str:
    """The text of an error, or of anything else that a program gives as a reason."""
    try:
        described = getattr(said, "description", None)
        if isinstance(described, bytes):  # an error of the binding, whose own text has them as b'...'
            return f"{described.decode()} ({getattr(said, 'code', '')})"
        return str(said)
    except SURVIVED as error:
        return f"a {type(said).__name__} without a text ({type(error).__name__})"


_JSON_BEGINS = ("{", "[", '"')


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
