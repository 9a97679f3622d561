"""The directory that is shared by the processes of a test of the engine."""

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A directory that is not there yet."""
    return tmp_path / "data"
