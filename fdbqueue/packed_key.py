"""Packed key: a key that a task names, in bytes: a task key, a unique key, or the key of a limit."""

from typing import Any

from fdb import tuple as layer

from fdbqueue import limits
from fdbqueue.errors import InvalidArgument


def key_bytes(key: Any, name: str = "key") -> bytes:
    """The packed task key, or unique key. Raises: InvalidArgument."""
    if isinstance(key, tuple | list) and _is_deep(key):
        wanted = f"nested at most {limits.TASK_KEY_DEPTH_MAX} levels deep"
        raise InvalidArgument(name=name, wanted=wanted, got=key)
    # The tuple layer keeps values of different types apart: 1, "1", True and None are four keys.
    try:
        packed: bytes = layer.pack((key,))
    except Exception as reason:  # the tuple layer raises struct.error, RecursionError and others besides
        raise InvalidArgument(name=name, wanted="a value that the tuple layer can pack", got=key) from reason
    if len(packed) > limits.TASK_KEY_BYTES_MAX:
        wanted = f"at most {limits.TASK_KEY_BYTES_MAX} bytes when packed"
        raise InvalidArgument(name=name, wanted=wanted, got=key)
    return packed


def _is_deep(key: Any) -> bool:
    """True above the depth at which the tuple layer, which recurses, may exhaust any stack."""
    level = [key]
    for _ in range(limits.TASK_KEY_DEPTH_MAX):
        level = [part for value in level if isinstance(value, tuple | list) for part in value]
        if not level or len(level) > limits.TASK_KEY_BYTES_MAX:
            return False  # a key that is too wide is refused for its size
    return any(isinstance(value, tuple | list) for value in level)
