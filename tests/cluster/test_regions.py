"""Two regions as processes of this machine: the primary one is killed, and the other takes over.

They need `fdbserver` and `fdbcli` on the PATH, or in the variables FDBSERVER and FDBCLI.
"""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.drills.servers import FDBCLI, FDBSERVER, wait_until
from tests.conftest import CLUSTER_FILE

if CLUSTER_FILE is None:
    pytest.skip("FDB_CLUSTER_FILE names no cluster", allow_module_level=True)
if FDBSERVER is None or FDBCLI is None:
    pytest.skip("no fdbserver and fdbcli to drill", allow_module_level=True)

TREE = Path(__file__).parents[2]
LONGEST_S = 1_000
STARTING = """
import sys, time
from pathlib import Path
from loadtest.drills.servers import Servers
servers = Servers(Path(sys.argv[1]), datacenters=[""], coordinators=[0])
servers.cluster_file.write_text("drill:drill@127.0.0.1:1")
servers.start(0)
print("started", flush=True)
time.sleep(600)
"""


def drilled(*options: str) -> tuple[int, dict[str, str], str]:
    """The exit status of the drill, the rows of its table, and its output."""
    command = [sys.executable, "-m", "loadtest.drills.regions", *options]
    done = subprocess.run(command, cwd=TREE, capture_output=True, text=True, timeout=LONGEST_S)
    rows = [re.split(r"\s{2,}", line, maxsplit=1) for line in done.stdout.splitlines()]
    return done.returncode, dict(row for row in rows if len(row) == 2), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
def test_nothing_is_lost_with_the_primary_region() -> None:
    """The satellite has the last commits, and each region takes over by itself."""
    status, rows, said = drilled("--back")
    assert status == 0, said
    assert (rows["lost"], rows["given twice"]) == ("0", "0")
    assert "primary region active again" in rows


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
def test_the_drill_sees_what_a_forced_takeover_loses() -> None:
    """Without a satellite, the remote region never gets the last commits."""
    status, rows, said = drilled("--no-satellite")
    assert status == 1, said
    assert int(rows["lost"].replace(",", "")) > 0


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_process_that_started_them(tmp_path: Path, end: signal.Signals) -> None:
    command = [sys.executable, "-c", STARTING, str(tmp_path)]
    with subprocess.Popen(command, cwd=TREE, stdout=subprocess.PIPE, text=True) as drill:
        try:
            assert drill.stdout is not None
            assert drill.stdout.readline() == "started\n"
            assert servers_in(tmp_path)
            drill.send_signal(end)
            drill.wait(60)
            wait_until(lambda: not servers_in(tmp_path), "the server goes on")
        finally:
            drill.kill()


def servers_in(directory: Path) -> list[int]:
    """The processes with a file of this directory in their command, but for the drill."""
    named = f"--datadir={directory}".encode()
    return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if has(path, named)]


def has(path: Path, text: bytes) -> bool:
    try:
        return text in path.read_bytes()
    except OSError:  # it has just ended
        return False
