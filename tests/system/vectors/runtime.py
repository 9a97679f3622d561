"""VectorRuntime: time and randomness of a vector. No thread runs beside its call."""

from collections.abc import Callable

from fdbqueue.core.runtime import RealRuntime, Thread

_START_US = 1_700_000_000_000_000


class _NoThread:
    def join(self, timeout: float | None = None) -> None:
        """Does nothing: it has never run."""

    def is_alive(self) -> bool:
        return False


class VectorRuntime(RealRuntime):
    """A clock that stands still, and random bytes that a source gives."""

    def __init__(self) -> None:
        self.time_us = _START_US
        self.source: Callable[[int], bytes] = bytes
        """Returns this number of random bytes."""
        self.drawn: list[bytes] = []
        """The random bytes of the call, in the order in which it has asked for them."""

    def now(self) -> float:
        return self.time_us / 1_000_000

    def now_us(self) -> int:
        return self.time_us

    def random_bytes(self, count: int) -> bytes:
        drawn = self.source(count)
        self.drawn.append(drawn)
        return drawn

    def host_name(self) -> str:
        return "host"

    def process_id(self) -> int:
        return 1

    def spawn(self, target: Callable[[], None], name: str) -> Thread:  # noqa: ARG002  # as the Runtime's
        return _NoThread()


def in_turn(numbers: "Callable[[], int]") -> Callable[[int], bytes]:
    """A source of bytes that are texts with the numbers that `numbers` gives, so that a reader finds them
    again.
    """

    def source(count: int) -> bytes:
        number = str(numbers())
        return (b"random-bytes-of-a-call"[: count - len(number)] + number.encode())[:count]

    return source


def repeated(drawn: list[bytes]) -> Callable[[int], bytes]:
    """A source of these bytes, each once. Raises: ValueError for another number of bytes."""
    left = iter(drawn)

    def source(count: int) -> bytes:
        found = next(left, b"")
        if len(found) != count:
            raise ValueError(f"the call asks for {count} random bytes, and the vector has {len(found)}")
        return found

    return source
