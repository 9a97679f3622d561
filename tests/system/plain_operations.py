"""The atomic operations, transcribed from their documentation as plainly as possible.

Arithmetic ones see both sides as little-endian numbers, the old value cut or zero-padded to the width of
the operand. `old` is None for an absent key; so is a result.
"""

from collections.abc import Callable

VALUE_BYTES_MAX = 100_000

Operation = Callable[[bytes | None, bytes], bytes | None]


def _number(value: bytes | None, width: int) -> int:
    return int.from_bytes((value or b"")[:width], "little")


def _arithmetic(compute: Callable[[int, int], int]) -> Operation:
    def operation(old: bytes | None, operand: bytes) -> bytes:
        width = len(operand)
        result = compute(_number(old, width), _number(operand, width))
        return (result % (1 << 8 * width)).to_bytes(width, "little")

    return operation


def _or_operand_if_absent(operation: Operation) -> Operation:
    return lambda old, operand: operand if old is None else operation(old, operand)


def _append_if_fits(old: bytes | None, operand: bytes) -> bytes:
    joined = (old or b"") + operand
    return joined if len(joined) <= VALUE_BYTES_MAX else (old or b"")


OPERATIONS: dict[str, Operation] = {
    "add": _arithmetic(lambda old, operand: old + operand),
    "bit_and": _or_operand_if_absent(_arithmetic(lambda old, operand: old & operand)),
    "bit_or": _arithmetic(lambda old, operand: old | operand),
    "bit_xor": _arithmetic(lambda old, operand: old ^ operand),
    "max": _arithmetic(max),
    "min": _or_operand_if_absent(_arithmetic(min)),
    "byte_max": _or_operand_if_absent(lambda old, operand: max(old or b"", operand)),
    "byte_min": _or_operand_if_absent(lambda old, operand: min(old or b"", operand)),
    "append_if_fits": _append_if_fits,
    "compare_and_clear": lambda old, operand: None if old in (None, operand) else old,
}
