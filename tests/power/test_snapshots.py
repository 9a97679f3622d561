"""Snapshots of file systems under load have each acknowledged commit, wherever they are opened."""

import subprocess
import sys

import pytest

from tests.power import recording, snapshots, volumes

SHORT = ["--minutes", "0", "--snapshots", "1", "--seed", "3"]
LIMIT_S = 100


@pytest.mark.parametrize("kind", ["btrfs", "ext4"])
def test_a_snapshot_under_load_loses_no_commit(kind: str) -> None:
    reason = volumes.missing(kind)
    if reason is not None:
        pytest.skip(reason)
    program = [sys.executable, "-m", "tests.power.snapshots", "--kind", kind, *SHORT]
    told = subprocess.run(
        program,
        cwd=recording.REPOSITORY,
        env=recording.importing(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )

    assert told.returncode == 0, told.stdout + told.stderr
    assert "1 runs, 0 broken promises" in told.stdout


def test_without_btrfs_the_program_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("sys.argv", ["snapshots"])

    assert snapshots.main() == 0
    assert capsys.readouterr().out == "no snapshots can be taken: no mkfs.btrfs\n"
