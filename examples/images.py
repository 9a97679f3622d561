"""An image pipeline: check, shrink, publish. A stage that fails for good leaves its image among the buried.

    python examples/images.py in/*.ppm                            # images to work on
    fdbqueue work check shrink publish examples.images:work       # workers, here or on any machine
    python examples/images.py                                     # the buried: in which stage, and why
    fdbqueue kick check --all                                     # once more, when they are mended

The images are PPM files, which a few lines read and write without any other package. `shrunk` and `read` are
the places for Pillow.
"""

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import fdbqueue
from fdbqueue import Bury, Database, Done, HeldTask, TaskQueue, Transaction

STAGES = ("check", "shrink", "publish")
OUT = Path("out")
PUBLISHED = fdbqueue.Subspace(("images", "published"))
HEADER = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")
RGB = 3
LISTED_MAX = 100


@dataclass(frozen=True)
class Image:
    width: int
    height: int
    pixels: bytes


def open_stages(db: Database, ttr: float = 60) -> dict[str, TaskQueue]:
    """`ttr`: seconds after which the image of a dead worker goes to another."""
    return {name: TaskQueue.create(db, name, "fifottl", ttr=ttr, if_not_exists=True) for name in STAGES}


def work(task: HeldTask) -> None:
    """The handler of all stages: do the work of one, then put the image into the next one with the ack."""
    file = Path(task.data)
    DUTIES[task.queue](file)
    stage = STAGES.index(task.queue)
    following = TaskQueue.open(task.database, STAGES[stage + 1]) if stage + 1 < len(STAGES) else None

    def hand_on(tr: Transaction) -> None:
        if following is None:
            tr[PUBLISHED[file.name]] = str(published(file)).encode()
        else:
            following.put(tr, task.data)

    raise Done(hand_on)


def check(file: Path) -> None:
    read(file)


def shrink(file: Path) -> None:
    store(half(file), shrunk(read(file)))


def publish(file: Path) -> None:
    """Raises FileNotFoundError, unless an attempt that was not acked has published the file."""
    try:
        half(file).replace(published(file))
    except FileNotFoundError:
        if not published(file).exists():
            raise


DUTIES: dict[str, Callable[[Path], None]] = {"check": check, "shrink": shrink, "publish": publish}


def half(file: Path) -> Path:
    return OUT / f".{file.name}"


def published(file: Path) -> Path:
    return OUT / file.name


def read(file: Path) -> Image:
    """Raises Bury for a damaged image, as no further attempt would help."""
    content = file.read_bytes()
    header = HEADER.match(content)
    if header is None:
        raise Bury(f"{file}: not a PPM image of 8 bits")
    image = Image(int(header[1]), int(header[2]), content[header.end() :])
    if len(image.pixels) != image.width * image.height * RGB:
        raise Bury(f"{file}: {len(image.pixels)} bytes of pixels, not {image.width} x {image.height} x {RGB}")
    return image


def store(file: Path, image: Image) -> None:
    """Write a file as a whole: a process that is killed leaves no half of one."""
    file.parent.mkdir(exist_ok=True)
    unfinished = file.with_name(f"{file.name}.{os.getpid()}")
    unfinished.write_bytes(b"P6\n%d %d\n255\n" % (image.width, image.height) + image.pixels)
    unfinished.replace(file)


def shrunk(image: Image) -> Image:
    """Every second pixel of every second row. With Pillow: `Image.reduce(2)`."""
    rows = [row_of(image, y)[: image.width // 2 * 2 * RGB] for y in range(0, image.height // 2 * 2, 2)]
    pixels = b"".join(row[x : x + RGB] for row in rows for x in range(0, len(row), 2 * RGB))
    return Image(image.width // 2, image.height // 2, pixels)


def row_of(image: Image, y: int) -> bytes:
    length = image.width * RGB
    return image.pixels[y * length : (y + 1) * length]


def show_buried(db: Database) -> None:
    for name, stage in open_stages(db).items():
        for task in stage.tasks(db, "!", LISTED_MAX):
            print(f"{name}: {stage.failures(db, task)[-1].message}")


def main() -> None:
    with fdbqueue.open() as db:
        if sys.argv[1:]:
            open_stages(db)["check"].put_many(db, sys.argv[1:])
        else:
            show_buried(db)


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
