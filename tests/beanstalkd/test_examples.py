"""The programs of examples/beanstalkd-*, with the clients of the registries, where these are installed."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.beanstalkd.client import Served

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = shutil.which("node")


def run(served: Served, *program: str) -> str:
    command = [*program, "127.0.0.1", str(served.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("package", "name"), [("greenstalk", "mails.py"), ("pystalk", "mails_pystalk.py")])
def test_a_client_in_python_gets_its_job(served: Served, package: str, name: str) -> None:
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    assert run(served, sys.executable, str(EXAMPLES / "beanstalkd-python" / name)) == "hello\n"


def test_a_client_in_node_gets_its_job(served: Served) -> None:
    folder = EXAMPLES / "beanstalkd-node"
    if NODE is None or not (folder / "node_modules" / "jackd").is_dir():
        pytest.skip("it needs Node, and `npm install` in examples/beanstalkd-node")
    assert run(served, NODE, str(folder / "mails.js")) == "hello\n"
