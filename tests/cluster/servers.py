"""A FoundationDB cluster of our own to hurt, on 127.0.0.1: three servers, three coordinators, data twice."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SERVERS = 3
# Debian's package puts the server where only root's PATH looks.
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
FDBSERVER = shutil.which("fdbserver", path=SEARCHED)
FDBCLI = shutil.which("fdbcli", path=SEARCHED)
# How long a cluster may take to agree on anything; a recovery takes a second or two.
PATIENCE_S = 90.0


class Servers:
    """Three fdbserver processes, each a failure zone of its own; a context manager that ends them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.cluster_file = directory / "fdb.cluster"
        self._ports = free_ports(SERVERS)
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Servers":
        coordinators = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        self.cluster_file.write_text(f"drill:drill@{coordinators}\n")
        with ExitStack() as undo:
            undo.callback(self.stop)
            for number in range(SERVERS):
                self.start(number)
            self.ask("configure new double ssd")
            self.until_healthy()
            undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self, number: int) -> None:
        assert FDBSERVER is not None
        home = self.directory / f"server-{number}"
        home.mkdir(exist_ok=True)
        settings = {
            "cluster-file": self.cluster_file,
            "public-address": f"127.0.0.1:{self._ports[number]}",
            "listen-address": "public",
            "datadir": home,
            "logdir": home,
            "locality-zoneid": f"zone-{number}",
            "locality-machineid": f"machine-{number}",
            "memory": "4GiB",
            "cache-memory": "256MiB",
        }
        command = [FDBSERVER, *(f"--{name}={value}" for name, value in settings.items())]
        with (home / "output").open("ab") as output:
            self._running[number] = subprocess.Popen(command, stdout=output, stderr=output)

    def kill(self, number: int) -> None:
        server = self._running.pop(number)
        server.kill()
        server.wait()

    def freeze(self, number: int) -> None:
        self._running[number].send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self._running[number].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for number in list(self._running):
            self.thaw(number)
            self.kill(number)

    def recover(self) -> None:
        """Kill whichever server holds the transaction system's leader, and start it again: a recovery."""
        leader = self.holders_of("master")[0]
        self.kill(leader)
        self.start(leader)

    def holders_of(self, role: str) -> list[int]:
        """The servers that have a role now: "master", "log", "commit_proxy", "storage"."""
        processes = self.status()["cluster"]["processes"].values()
        return [
            self._ports.index(int(process["address"].split(":")[1]))
            for process in processes
            if any(held["role"] == role for held in process["roles"])
        ]

    def generation(self) -> int:
        """A number that grows with each recovery."""
        found: int = self.status()["cluster"]["generation"]
        return found

    def until_healthy(self) -> None:
        """Wait until every server is back and every piece of data has its two copies again."""
        wait_until(self._is_healthy, "the cluster never became healthy")

    def _is_healthy(self) -> bool:
        cluster = self.status()["cluster"]
        return (
            cluster.get("database_available", False)
            and cluster.get("data", {}).get("state", {}).get("name") in ("healthy", "healthy_rebalancing")
            and len(cluster.get("processes", {})) == SERVERS
        )

    def status(self) -> Any:
        return json.loads(self.ask("status json"))

    def ask(self, command: str) -> str:
        assert FDBCLI is not None
        asked = [FDBCLI, "-C", str(self.cluster_file), "--timeout", "60", "--exec", command]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
        return done.stdout


def free_ports(count: int) -> list[int]:
    """Ports on which no process listens.

    They are all held until all are known, so that no two are the same.
    """
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)
