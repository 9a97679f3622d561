"""The compose file in a container engine. FDBQUEUE_TEST_COMPOSE is its command: docker compose."""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import yaml

from tests.docker.files import DOCKER, compose

COMMAND = shlex.split(os.environ.get("FDBQUEUE_TEST_COMPOSE", ""))
PROJECT = "fdbqueue-test"
PATIENCE_S = 120.0
BATCH = 200
HANDLED = re.compile(r"to (\S+?): welcome")
QUEUE = "import fdbqueue; db = fdbqueue.open(); queue = fdbqueue.TaskQueue.open(db, 'emails')"


class Project:
    """One project of the compose file: its containers, networks and volumes."""

    def __init__(self, file):
        """`file`: a copy of compose.yaml without its name, which older releases of Compose refuse."""
        self._call = (
            *COMMAND,
            "--project-directory",
            str(DOCKER),
            "--project-name",
            PROJECT,
            "--file",
            str(file),
        )

    def run(self, *arguments):
        done = subprocess.run((*self._call, *arguments), capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return done.stdout

    def up(self, *services, **replicas):
        scales = [f"--scale={name.replace('_', '-')}={number}" for name, number in replicas.items()]
        self.run("up", "--detach", "--no-build", *scales, *services)

    def containers(self, service):
        return self.run("ps", "--quiet", service).split()

    def python(self, service, text):
        """The output of a program that runs in the first container of a service."""
        return self.run("exec", "-T", service, "python", "-c", text)

    def put(self, names):
        """Put one task for each name, in several transactions."""
        for start in range(0, len(names), BATCH):
            listed = json.dumps(names[start : start + BATCH])
            self.python("fdb-client", f"{QUEUE}; queue.put_many(db, [{{'to': name}} for name in {listed}])")

    def done(self):
        return int(self.python("fdb-client", f"{QUEUE}; print(queue.statistics(db)['tasks']['done'])"))

    def handled(self):
        """The name of each task that a worker handled, as often as it did."""
        # Two threads may print into one line.
        return HANDLED.findall("".join(docker("logs", one) for one in self.containers("worker")))


def docker(*arguments):
    return subprocess.run(("docker", *arguments), capture_output=True, text=True, check=True).stdout.strip()


def health(container):
    return docker("inspect", "--format", "{{.State.Health.Status}}", container)


def until(holds, patience_s=PATIENCE_S):
    """Wait until a condition of containers holds: they have no signal that a test could wait for."""
    end_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < end_s, "it did not become so"
        time.sleep(0.5)


@contextmanager
def fleet(folder, workers) -> Iterator[Project]:
    """The cluster, the queue and workers; all is gone after it."""
    plain = {name: part for name, part in compose().items() if name != "name"}
    plain["services"]["fdb-client"] = client(plain["services"]["queues"])
    file = folder / "compose.yaml"
    file.write_text(yaml.safe_dump(plain, sort_keys=False))
    project = Project(file)
    try:
        project.up("worker", "fdb-client", worker=workers)
        yield project
    finally:
        project.run("--profile", "load", "down", "--volumes", "--timeout", "5")


def client(like):
    """A container that only waits for the commands of the test, so that no restart meets it."""
    return {**like, "command": ["sleep", "infinity"]}
