"""`Value` and `Key`: futures of bytes that behave as bytes, as the binding's do."""

from typing import Any

from fdbqueue.embedded.futures import Future, PendingFuture


class _BytesLike:
    """The methods that a future of bytes has beside those of a future: those of its bytes."""

    __slots__ = ()
    _error: Exception | None
    _result: Any

    @property  # type: ignore[misc]  # object's can be assigned, this one cannot
    def __class__(self) -> type:  # isinstance(value, bytes) holds, as in the binding
        return bytes

    @property
    def value(self) -> Any:
        """The bytes, or None for an absent key.

        Raises: FDBError.
        """
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self) -> Any:
        self.value  # noqa: B018  # raises the error of a failed read
        return self

    def present(self) -> bool:
        return self.value is not None

    def as_foundationdb_key(self) -> Any:
        return self.value

    def as_foundationdb_value(self) -> Any:
        return self.value

    def __str__(self) -> str:
        return str(self.value)

    def __bytes__(self) -> Any:
        return self.value

    def __repr__(self) -> str:
        return repr(self.value)

    def __hash__(self) -> int:
        return hash(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __add__(self, other: Any) -> Any:
        return self.value + _plain(other)

    def __radd__(self, other: Any) -> Any:
        return _plain(other) + self.value

    def __mul__(self, count: Any) -> Any:
        return self.value * count

    def __rmul__(self, count: Any) -> Any:
        return count * self.value

    def __lt__(self, other: Any) -> Any:
        return self.value < _plain(other)

    def __le__(self, other: Any) -> Any:
        return self.value <= _plain(other)

    def __gt__(self, other: Any) -> Any:
        return self.value > _plain(other)

    def __ge__(self, other: Any) -> Any:
        return self.value >= _plain(other)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == _plain(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __int__(self) -> int:
        return int(self.value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.value, name)


def _plain(other: Any) -> Any:
    return other.value if _BytesLike in type(other).__mro__ else other


class Value(_BytesLike, Future):
    """The value of a key, or None."""

    __slots__ = ()


class Key(Value):
    """The key that a key selector named."""

    __slots__ = ()


class PendingKey(_BytesLike, PendingFuture):
    """A versionstamp, ready after the commit."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        return PendingFuture.wait(self)


def key_bytes(key: Any) -> bytes:
    """Return the bytes of a key argument: bytes, a Subspace, or a Value.

    Raises: TypeError.
    """
    if hasattr(key, "as_foundationdb_key"):
        key = key.as_foundationdb_key()
    if not isinstance(key, bytes):
        raise TypeError("Key must be of type bytes")
    return key if type(key) is bytes else bytes(key)  # the commit log cannot encode a subclass of bytes


def value_bytes(value: Any) -> bytes:
    if hasattr(value, "as_foundationdb_value"):
        value = value.as_foundationdb_value()
    if not isinstance(value, bytes):
        raise TypeError("Value must be of type bytes")
    return value if type(value) is bytes else bytes(value)
