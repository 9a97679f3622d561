"""The atomic operations of FoundationDB 7.3 as pure functions of (existing value, operand).

The existing value is None if the key is absent; the result is None if the key is to be cleared. Source of the
rules: MutationType in fdb.options, at API version 510 and later (`min` and `and` of an absent key store the
operand).
"""

from collections.abc import Callable

from fdbqueue.limits import VALUE_BYTES_MAX

ADD, AND, OR, XOR, APPEND_IF_FITS = 2, 6, 7, 8, 9
MAX, MIN = 12, 13
SET_VERSIONSTAMPED_KEY, SET_VERSIONSTAMPED_VALUE = 14, 15
BYTE_MIN, BYTE_MAX, COMPARE_AND_CLEAR = 16, 17, 20

Existing = bytes | None
Operation = Callable[[Existing, bytes], bytes | None]


def _fit(existing: bytes, operand: bytes) -> bytes:
    """Return the existing value at the operand's width: cut, or padded with zeros at the high end."""
    return existing[: len(operand)].ljust(len(operand), b"\x00")


def _as_int(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _add(existing: Existing, operand: bytes) -> bytes:
    if not existing or not operand:
        return operand
    width = len(operand)
    total = int.from_bytes(existing[:width], "little") + int.from_bytes(operand, "little")
    return (total & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def _bitwise(combine: Callable[[int, int], int]) -> Operation:
    def operation(existing: Existing, operand: bytes) -> bytes:
        if existing is None:
            return operand
        combined = combine(_as_int(_fit(existing, operand)), _as_int(operand))
        return combined.to_bytes(len(operand), "little")

    return operation


def _append_if_fits(existing: Existing, operand: bytes) -> bytes:
    existing = existing or b""
    return existing + operand if len(existing) + len(operand) <= VALUE_BYTES_MAX else existing


def _max(existing: Existing, operand: bytes) -> bytes:
    fitted = _fit(existing or b"", operand)
    return fitted if _as_int(fitted) > _as_int(operand) else operand


def _min(existing: Existing, operand: bytes) -> bytes:
    if existing is None:
        return operand
    fitted = _fit(existing, operand)
    return fitted if _as_int(fitted) < _as_int(operand) else operand


def _byte_min(existing: Existing, operand: bytes) -> bytes:
    return operand if existing is None else min(existing, operand)


def _byte_max(existing: Existing, operand: bytes) -> bytes:
    return operand if existing is None else max(existing, operand)


def _compare_and_clear(existing: Existing, operand: bytes) -> bytes | None:
    return None if existing == operand else existing


OPERATIONS: dict[int, Operation] = {
    ADD: _add,
    AND: _bitwise(int.__and__),
    OR: _bitwise(int.__or__),
    XOR: _bitwise(int.__xor__),
    APPEND_IF_FITS: _append_if_fits,
    MAX: _max,
    MIN: _min,
    BYTE_MIN: _byte_min,
    BYTE_MAX: _byte_max,
    COMPARE_AND_CLEAR: _compare_and_clear,
}
