"""The parts of the batch job; docs/gallery/batch.md runs the whole of it in a test."""

import gzip
import subprocess
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT


@pytest.fixture
def batch(tmp_path: Path) -> list[str]:
    """The command, in `tmp_path`."""
    return ["env", "-C", str(tmp_path), str(ROOT / "examples" / "batch.sh")]


def run(command: list[str], *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_file_that_is_compressed_twice_is_there_once(batch: list[str], tmp_path: Path) -> None:
    name = "b c/$(d).log"
    (tmp_path / "logs" / "b c").mkdir(parents=True)
    (tmp_path / "logs" / name).write_text("b" * 1000)
    size = {run(batch, "one", "logs", "out", name)[1] for _ in range(2)}
    (compressed,) = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert compressed == tmp_path / "out" / f"{name}.gz"
    assert gzip.decompress(compressed.read_bytes()) == b"b" * 1000
    assert size == {f'"{name}: 1000 to {compressed.stat().st_size} bytes"\n'}


def test_a_filled_directory_is_not_filled_again(batch: list[str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".filled").touch()
    said = "out is filled; to begin again, remove out/.filled\n"
    assert run(batch, "fill", "logs", "out") == (1, "", said)


def test_a_call_that_it_does_not_know_is_a_mistake(batch: list[str]) -> None:
    status, _, said = run(batch, "start")
    assert status == 2
    assert "examples/batch.sh fill logs out" in said
