"""Keys of the Celery room: the only file that builds or parses them (root_keys.py knows their shapes).

R is the root. Values are bytes.

    R["celery", 0, exchange, routing_key, queue]  binding  owner          read by each publish to the exchange
    R["celery", 1, queue]                  owned    owner                 read by declarations of owned queues
    R["celery", 2, chord, index, part]     part     empty                 read by the return of that part
    R["celery", 3, chord]                  count    little-endian         read by each return of a part
    R["celery", 4, chord]                  size     little-endian         read by each return of a part
    R["celery", 4, chord, part]            added    empty                 read by the addition of that part
    R["celery", 5, ends_us, chord]         end      empty                 read by the start of each chord

An `owner` is a session; it is empty for a queue that stays. Results lie elsewhere (common/results.py).
"""

from typing import Any

from fdbqueue.core.root_keys import CELERY, DEFAULT_ROOT

BINDING, OWNED, PART, COUNT, SIZE, CHORD_END = range(6)


def _key(*parts: Any) -> bytes:
    key: bytes = DEFAULT_ROOT.pack((CELERY, *parts))
    return key


def _range(*parts: Any) -> slice:
    found: slice = DEFAULT_ROOT.range((CELERY, *parts))
    return found


def _parts(key: bytes) -> tuple[Any, ...]:
    return tuple(DEFAULT_ROOT.unpack(key)[2:])


def binding(exchange: str, routing_key: str, queue: str) -> bytes:
    return _key(BINDING, exchange, routing_key, queue)


def bindings(exchange: str) -> slice:
    return _range(BINDING, exchange)


def all_bindings() -> slice:
    return _range(BINDING)


def binding_of(key: bytes) -> tuple[str, str, str]:
    exchange, routing_key, queue = _parts(key)
    return exchange, routing_key, queue


def owned(queue: str) -> bytes:
    return _key(OWNED, queue)


def all_owned() -> slice:
    return _range(OWNED)


def owned_of(key: bytes) -> str:
    queue: str = _parts(key)[0]
    return queue


def part(chord: str, index: int, name: str) -> bytes:
    return _key(PART, chord, index, name)


def parts(chord: str) -> slice:
    return _range(PART, chord)


def part_of(key: bytes) -> str:
    name: str = _parts(key)[2]
    return name


def count(chord: str) -> bytes:
    return _key(COUNT, chord)


def size(chord: str) -> bytes:
    return _key(SIZE, chord)


def added(chord: str, name: str) -> bytes:
    return _key(SIZE, chord, name)


def all_added(chord: str) -> slice:
    return _range(SIZE, chord)


def chord_end(ends_us: int, chord: str) -> bytes:
    return _key(CHORD_END, ends_us, chord)


def chord_ends_until(time_us: int) -> slice:
    return slice(_range(CHORD_END).start, _key(CHORD_END, time_us + 1))


def chord_end_of(key: bytes) -> str:
    chord: str = _parts(key)[1]
    return chord
