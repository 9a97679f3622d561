"""The units in monitoring/ are sound, and stop a fleet as its supervisor wants it."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "monitoring"
WORKER, DASHBOARD = "fdbqueue-worker@.service", "fdbqueue-dashboard.service"
PROGRAM = "/opt/fdbqueue/bin/fdbqueue"


@pytest.mark.parametrize("name", [WORKER, DASHBOARD])
def test_systemd_verifies_the_unit(name: str, tmp_path: Path) -> None:
    """Its program is another one, which exists here."""
    analyze, program = shutil.which("systemd-analyze"), shutil.which("true")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    assert program is not None
    unit = tmp_path / name.replace("@", "@mails")
    unit.write_text((UNITS / name).read_text().replace(PROGRAM, program))
    command = [analyze, "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if unit.name in line]) == (0, [])


def test_the_time_to_stop_is_longer_than_the_grace() -> None:
    """The supervisor kills a process ten seconds after its grace."""
    text = (UNITS / WORKER).read_text()
    grace_s = int(text.partition("--grace ")[2].split()[0])
    stop_s = int(text.partition("TimeoutStopSec=")[2].split()[0])
    assert stop_s >= grace_s + 15
    assert {"KillMode=mixed", "KillSignal=SIGTERM", "Restart=on-failure"} <= set(text.splitlines())
