"""Snapshots of file systems under load have each acknowledged commit, wherever they are opened."""

from pathlib import Path

import pytest

from tests.power import snapshots, volumes

SEED = 3


@pytest.mark.parametrize("kind", ["btrfs", "ext4"])
def test_a_snapshot_under_load_loses_no_commit(kind: str, tmp_path: Path) -> None:
    reason = volumes.missing(kind)
    if reason is not None:
        pytest.skip(reason)

    assert list(snapshots.judged(tmp_path, kind, "tiny", SEED, snapshots=1)) == []


def test_without_btrfs_the_program_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("sys.argv", ["snapshots"])

    assert snapshots.main() == 0
    assert capsys.readouterr().out == "no snapshots can be taken: no mkfs.btrfs\n"
