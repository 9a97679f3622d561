"""The file store of persist-queue, `persistqueue.Queue`: a directory of numbered chunks, and `info`.

`info` holds two places, each a chunk, an entry and a byte: the tail, where the next get reads, and the head,
where the next put writes. Bytes behind the head belong to a put that did not finish.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fdbqueue.core.errors import OriginUnusable
from fdbqueue.operate.imports.serializers import Serializer
from fdbqueue.operate.imports.target import Entry

INFO = "info"
FIRST_CHUNK = "q00000"


def is_file_queue(folder: Path) -> bool:
    """True for the directory of a file queue, also of one into which nothing was ever put."""
    return any((folder / name).is_file() for name in (INFO, FIRST_CHUNK))


class Files:
    kind = "fifo"

    def __init__(self, folder: Path, serializer: Serializer) -> None:
        """Raises: OriginUnusable if `info` is not readable."""
        self.label = f"persist-queue:{folder.resolve()}"
        self._folder = folder
        self._serializer = serializer
        self._info = self._read_info()

    def value(self, entry: Entry) -> Any:
        return self._serializer.loads_cut(entry.raw)

    def entries(self) -> Iterator[Entry]:
        (first, index, offset), (last, _, _) = self._info["tail"], self._info["head"]
        for number in range(first, last + 1):
            yield from self._chunk(number, index, offset)
            index = offset = 0

    def _chunk(self, number: int, index: int, offset: int) -> Iterator[Entry]:
        """Read the entries of one chunk. If one cannot be cut out, those behind it cannot either."""
        last, count, end = self._info["head"]
        count = count if number == last else self._info["chunksize"]
        path = self._folder / f"q{number:05d}"
        if index >= count:
            return
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            yield from _damaged(path, range(index, count), number, "its file is missing")
            return
        with stream:
            stream.seek(offset)
            inode = os.fstat(stream.fileno()).st_ino
            for at in range(index, count):
                try:
                    raw = self._cut(stream, end if number == last else None)
                except OSError:
                    raise
                except Exception as reason:
                    said = (
                        f"its bytes cannot be told from those behind it ({type(reason).__name__}: {reason})"
                    )
                    yield from _damaged(path, range(at, count), number, said)
                    return
                yield Entry((number, at), _where(path, at), raw, identity=str(inode))

    def _cut(self, stream: BinaryIO, end: int | None) -> bytes:
        raw = self._serializer.cut(stream)
        if end is not None and stream.tell() > end:
            raise EOFError("it ends behind the head")
        return raw

    def _read_info(self) -> Mapping[str, Any]:
        path = self._folder / INFO
        if not path.exists():  # nothing was ever put
            return {"head": (0, 0, 0), "tail": (0, 0, 0), "chunksize": 0}
        try:
            with path.open("rb") as stream:
                found = self._serializer.loads_cut(self._serializer.cut(stream))
            head, tail = (tuple(map(int, found[end])) for end in ("head", "tail"))
            return {"head": _three(head), "tail": _three(tail), "chunksize": int(found["chunksize"])}
        except Exception as reason:
            said = f"{INFO} cannot be read with this --serializer ({type(reason).__name__}: {reason})"
            raise OriginUnusable(path=str(self._folder), reason=said) from reason


def _three(place: tuple[int, ...]) -> tuple[int, int, int]:
    chunk, index, offset = place
    return chunk, index, offset


def _damaged(path: Path, indexes: range, number: int, reason: str) -> Iterator[Entry]:
    for at in indexes:
        yield Entry((number, at), _where(path, at), b"", damage=reason)


def _where(path: Path, at: int) -> str:
    return f"item {at} of {path.name}"
