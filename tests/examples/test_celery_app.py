"""The Celery application, with a real worker."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from tests.support import wait_until

ROOT = Path(__file__).parents[2]
INVOICES = fdbqueue.Subspace(("shop", "invoices"))
PATIENCE_S = 120.0


@pytest.mark.in_turn(4)
def test_each_order_gets_its_invoice_and_the_total_is_theirs(tmp_path: Path) -> None:
    environment = {**os.environ, "BROKER": f"fdbqueue+embedded://{tmp_path}/data"}
    command = [sys.executable, "-m", "celery", "--app", "examples.celery_app", "worker", "--concurrency", "2"]
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        done = subprocess.run(
            [sys.executable, "-m", "examples.celery_app", "5"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.stdout == "510 cents\n", done.stderr + (tmp_path / "log").read_text()
        with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
            under = INVOICES.range()
            wait_until(
                lambda: len(db.create_transaction().get_range(under.start, under.stop).to_list()) == 5,
                PATIENCE_S,
            )
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
