"""File systems on loop devices, with snapshots of the whole. They need root, and btrfs below all of them."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

LIMIT_S = 60
_OUTER_BYTES, _INNER_BYTES = 4 << 30, 1 << 30  # of sparse files
_OPTIONS = {"ext4": "loop", "xfs": "loop,nouuid"}  # two disks of one UUID are mounted at a time


class Volume(Protocol):
    """A file system, mounted at `path`."""

    path: Path

    def snap(self, name: str) -> None:
        """Take a snapshot, which is never changed."""

    def opened(self, name: str) -> "Iterator[Path]":
        """Yield where a copy of the snapshot is, for a while; it can be changed."""

    def roll_back(self, name: str) -> None:
        """Put the snapshot in the place of the volume, which no process has open."""


class Subvolume:
    """A subvolume of btrfs. Its snapshot has what was flushed, and any part of the rest."""

    def __init__(self, top: Path) -> None:
        self.path = top / "live"
        self._top = top
        _run("btrfs", "subvolume", "create", self.path)

    def snap(self, name: str) -> None:
        _run("btrfs", "subvolume", "snapshot", "-r", self.path, self._top / name)

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        copy = self._top / f"{name}-copy"
        _run("btrfs", "subvolume", "snapshot", self._top / name, copy)
        try:
            yield copy
        finally:
            _run("btrfs", "subvolume", "delete", copy)

    def roll_back(self, name: str) -> None:
        _run("btrfs", "subvolume", "delete", "--commit-after", self.path)
        _run("btrfs", "subvolume", "sync", self._top)  # the new one gets the number of its device
        _run("btrfs", "subvolume", "snapshot", self._top / name, self.path)


class Image:
    """A file system in a file of btrfs. A clone of the file is that disk, cut off from its machine."""

    def __init__(self, top: Path, kind: str) -> None:
        self.path = top / "mounted"
        self._top, self._kind = top, kind
        _make(self._disk("live"), kind, _INNER_BYTES)
        self.path.mkdir()
        _mount(self._disk("live"), self.path, kind)

    def _disk(self, name: str) -> Path:
        return self._top / f"{name}.disk"

    def snap(self, name: str) -> None:
        _clone(self._disk("live"), self._disk(name))

    @contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        disk, place = self._disk("copy"), self._top / "copy"
        _clone(self._disk(name), disk)
        place.mkdir(exist_ok=True)
        _mount(disk, place, self._kind)
        try:
            yield place
        finally:
            _run("umount", place)

    def roll_back(self, name: str) -> None:
        _run("umount", self.path)
        _clone(self._disk(name), self._disk("live"))
        _mount(self._disk("live"), self.path, self._kind)

    def close(self) -> None:
        _run("umount", self.path)


KINDS = ("btrfs", "ext4", "xfs")


def missing(kind: str = "btrfs") -> str | None:
    """Why volumes of a kind cannot be made here; None if they can."""
    if os.geteuid():
        return "only root can mount"
    for program in ("mkfs.btrfs", "btrfs", f"mkfs.{kind}", "unshare"):
        if shutil.which(program) is None:
            return f"no {program}"
    return None if Path("/dev/loop-control").exists() else "no loop devices"


@contextmanager
def made(kind: str, folder: Path) -> Iterator[Volume]:
    """Make a volume in `folder`."""
    disk, top = folder / "outer.disk", folder / "outer"
    _make(disk, "btrfs", _OUTER_BYTES)
    top.mkdir()
    _mount(disk, top, "btrfs")
    try:
        if kind == "btrfs":
            yield Subvolume(top)
            return
        image = Image(top, kind)
        try:
            yield image
        finally:
            image.close()
    finally:
        _run("umount", top)


def _make(disk: Path, kind: str, size_bytes: int) -> None:
    with open(disk, "wb") as file:
        file.truncate(size_bytes)
    _run(f"mkfs.{kind}", "-q", disk)


def _mount(disk: Path, place: Path, kind: str) -> None:
    _run("mount", "-t", kind, "-o", _OPTIONS.get(kind, "loop"), disk, place)


def _clone(disk: Path, to: Path) -> None:
    to.unlink(missing_ok=True)
    _run("cp", "--reflink=always", disk, to)


def _run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")
