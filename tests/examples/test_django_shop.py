"""The shop on Django, with a real worker of its `manage.py`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import fdbqueue

SHOP = Path(__file__).parents[2] / "examples" / "django_shop"
ORDERS = fdbqueue.Subspace(("shop", "orders"))
PATIENCE_S = 120.0


def test_an_order_is_stored_and_confirmed(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path}/data"
    environment = {name: text for name, text in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["FDBQUEUE_URL"] = url
    manage = [sys.executable, "manage.py"]
    worker = subprocess.Popen([*manage, "fdbqueue_worker", "--verbosity", "0"], cwd=SHOP, env=environment)
    try:
        command = [*manage, "order", "17", "ada"]
        done = subprocess.run(
            command, cwd=SHOP, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.stdout == "order 17 is yours, ada\n", done.stderr
        with fdbqueue.open(url) as db:
            assert bytes(db[ORDERS.pack((17,))]) == b"ada"
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    finally:
        worker.kill()
        worker.wait()
