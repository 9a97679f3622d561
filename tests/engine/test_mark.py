"""The mark of a file differs in another mount, even at the same place."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fdbqueue.embedded import processes


def marked(path: Path) -> bytes | None:
    fd = os.open(path, os.O_RDONLY)
    try:
        return processes.mark_of(fd)
    finally:
        os.close(fd)


@contextmanager
def mounted(path: Path) -> Iterator[Path]:
    """Mount a new file system in memory, with one file."""
    done = subprocess.run(["mount", "-t", "tmpfs", "fdbqueue-test", path], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        file = path / "data.mdb"
        file.touch()
        yield file
    finally:
        subprocess.run(["umount", path], check=True)


def test_the_mark_of_a_file_stays(tmp_path: Path) -> None:
    file = tmp_path / "data.mdb"
    file.touch()

    assert marked(file) == marked(file) is not None


def test_the_mark_has_the_number_that_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_unique_mount", lambda _: 12345678901)

    assert b" 12345678901 " in (marked(tmp_path) or b"")


def test_no_other_mount_has_the_same_number(tmp_path: Path) -> None:
    numbers = []
    for _ in range(2):
        with mounted(tmp_path) as file:
            fd = os.open(file, os.O_RDONLY)
            numbers.append(processes._unique_mount(fd))
            os.close(fd)
    if None in numbers:
        pytest.skip("before Linux 6.8, a mount has no unique number")
    assert numbers[0] != numbers[1]


@pytest.mark.parametrize("statx", [None, lambda *_: -1])
def test_without_unique_numbers_the_mark_names_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statx: object
) -> None:
    monkeypatch.setattr(processes, "_statx", statx)
    file = tmp_path / "data.mdb"
    file.touch()

    assert marked(file) == marked(file) is not None


def test_a_kernel_without_unique_numbers_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the bit of the mask out; the field has the number that is used again."""

    def of_linux_6_7(*given: object) -> int:
        ctypes.memset(given[-1], 0xFF ^ 0x40, 256)
        return 0

    monkeypatch.setattr(processes, "_statx", of_linux_6_7)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert processes._unique_mount(fd) is None
    finally:
        os.close(fd)
