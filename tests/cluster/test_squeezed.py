"""A cluster that holds batch priority back: background work goes on, no lease is lost, nothing runs twice.

The test needs `fdbserver` and `fdbcli` on the PATH, or in the variables FDBSERVER and FDBCLI. It does not
judge the latency of foreign reads, which other tests on the machine delay.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.drills.servers import FDBCLI, FDBSERVER
from tests.conftest import CLUSTER_FILE

if CLUSTER_FILE is None:
    pytest.skip("FDB_CLUSTER_FILE names no cluster", allow_module_level=True)
if FDBSERVER is None or FDBCLI is None:
    pytest.skip("no fdbserver and fdbcli to drill", allow_module_level=True)

LONGEST_S = 900


@pytest.mark.slow
@pytest.mark.timeout(LONGEST_S)
def test_background_work_is_a_good_neighbour() -> None:
    command = [sys.executable, "-m", "loadtest.drills.squeezed", "--seconds=20", "--settle=5", "--pairs=1"]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=LONGEST_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "phase 2, background on" in done.stdout
