"""The addresses of the server: this machine alone, unless an option says otherwise."""

import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import PATIENCE_S

HERE = Path(__file__).parents[2]
SERVE = [sys.executable, "-m", "fdbqueue.operate.cli", "--url", "memory:", "serve", "--beanstalkd"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("0.0.0.0:0", "give --public"),
        ("11300", "it is neither HOST:PORT nor unix:PATH"),
        ("127.0.0.1:65536", "it is neither HOST:PORT nor unix:PATH"),
        ("unix:/nosuch/socket", "cannot listen on /nosuch/socket"),
    ],
)
def test_an_address_is_refused(address: str, reason: str) -> None:
    done = subprocess.run([*SERVE, address], cwd=HERE, capture_output=True, text=True, timeout=PATIENCE_S)
    assert reason in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


@contextmanager
def served_at(path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen([*SERVE, f"unix:{path}"], cwd=HERE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        assert f"at {path}\n" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_socket_at_a_path_is_for_one_user(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with served_at(path) as process:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"list-tube-used\r\n")
            assert client.recv(100) == b"USING default\r\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert not path.exists()
