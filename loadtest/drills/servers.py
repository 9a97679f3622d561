"""A FoundationDB cluster of our own to hurt, on 127.0.0.1: three servers with data twice, or two regions."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SERVERS = 3
# Debian's package puts the server where only root's PATH looks.
SEARCHED = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
FDBSERVER = os.environ.get("FDBSERVER") or shutil.which("fdbserver", path=SEARCHED)
FDBCLI = os.environ.get("FDBCLI") or shutil.which("fdbcli", path=SEARCHED)
# How long a cluster may take to agree on anything; a recovery takes a second or two.
PATIENCE_S = 90.0


class Servers:
    """Processes of fdbserver, each a failure zone of its own; a context manager that ends them.

    They end with this process, too, if it is killed.
    """

    def __init__(
        self,
        directory: Path,
        *,
        datacenters: Sequence[str] = ("",) * SERVERS,
        coordinators: Iterable[int] = range(SERVERS),
        configuration: dict[str, Any] | None = None,
        knobs: Mapping[str, object] | None = None,
    ) -> None:
        """One server for each name of a datacenter. `coordinators` has numbers of servers. The configuration
        is that of `fileconfigure`; None for one region with data twice. `knobs` are those of each server.
        """
        self.directory = directory
        self.cluster_file = directory / "fdb.cluster"
        self._datacenters = datacenters
        self._coordinators = list(coordinators)
        self._configuration = configuration or {"redundancy_mode": "double", "storage_engine": "ssd-2"}
        self._knobs = {f"knob_{name}": value for name, value in (knobs or {}).items()}
        self._ports = free_ports(len(datacenters))
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Servers":
        coordinators = ",".join(f"127.0.0.1:{self._ports[number]}" for number in self._coordinators)
        self.cluster_file.write_text(f"drill:drill@{coordinators}\n")
        with ExitStack() as undo:
            undo.callback(self.stop)
            for number in range(len(self._ports)):
                self.start(number)
            self.configure("new", self._configuration)
            self.until_healthy()
            undo.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def configure(self, how: str, configuration: dict[str, Any]) -> None:
        """Run `fileconfigure`, `how` is "new" or empty."""
        file = self.directory / "configuration.json"
        file.write_text(json.dumps(configuration))
        self.ask(f"fileconfigure {how} {file}")

    def of(self, datacenter: str) -> list[int]:
        """The servers of a datacenter."""
        return [number for number, name in enumerate(self._datacenters) if name == datacenter]

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
            "parentpid": os.getpid(),
            **self._knobs,
        }
        if self._datacenters[number]:
            settings["locality-dcid"] = self._datacenters[number]
        command = [FDBSERVER, *(f"--{name}={value}" for name, value in settings.items())]
        with (home / "output").open("ab") as output:
            # Not in the group of the terminal: Ctrl-C ends the drill, which then ends its servers in order.
            self._running[number] = subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            )

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

    def until_active(self, datacenter: str) -> None:
        """Wait until a region commits, in this datacenter."""
        wait_until(lambda: self._is_active(datacenter), f"{datacenter} never became active")

    def _is_active(self, datacenter: str) -> bool:
        cluster = self.status()["cluster"]
        return bool(cluster.get("database_available")) and cluster.get("active_primary_dc") == datacenter

    def until_healthy(self) -> None:
        """Wait until every server is back and every piece of data has all its copies again."""
        wait_until(self._is_healthy, "the cluster never became healthy")

    def _is_healthy(self) -> bool:
        cluster = self.status()["cluster"]
        return (
            cluster.get("database_available", False)
            and cluster.get("data", {}).get("state", {}).get("name") in ("healthy", "healthy_rebalancing")
            and cluster.get("full_replication", False)
            and len(cluster.get("processes", {})) == len(self._ports)
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
    """Raises TimeoutError after `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.2)
