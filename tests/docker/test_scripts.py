"""What containers start, started here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fdbqueue
from tests.docker.files import DOCKER, TREE, compose


def start(*command, **environment):
    program = Path(sys.executable).parent
    path = f"{program}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        [str(part) for part in command],
        env={
            "PATH": path,
            "PYTHONPATH": str(TREE),
            **{name: str(text) for name, text in environment.items()},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*command, **environment):
    with start(*command, **environment) as process:
        said, complained = process.communicate(timeout=60)
    return process.returncode, said, complained


@pytest.fixture
def cluster_file(tmp_path):
    return tmp_path / "fdb.cluster"


def enter(cluster_file, *command, **environment):
    return run(DOCKER / "entrypoint.sh", *command, FDB_CLUSTER_FILE=cluster_file, **environment)


def test_a_container_begins_with_the_cluster_file_it_is_given(cluster_file):
    """Written before the command runs."""
    status, said, _ = enter(cluster_file, "cat", cluster_file, FDB_CLUSTER_FILE_CONTENTS="a:b@127.0.0.1:4500")
    assert (status, said) == (0, "a:b@127.0.0.1:4500\n")


def test_a_cluster_file_that_is_there_is_kept(cluster_file):
    """Its client may know of coordinators that the environment does not."""
    cluster_file.write_text("newer")
    enter(cluster_file, "true", FDB_CLUSTER_FILE_CONTENTS="older")
    assert cluster_file.read_text() == "newer"


def test_without_contents_nothing_is_written(cluster_file):
    """As for the embedded engine."""
    assert enter(cluster_file, "true")[0] == 0
    assert not cluster_file.exists()


def test_the_command_takes_the_entry_points_place(cluster_file):
    """The same process: it gets the signals, and its status is the container's."""
    process = start(DOCKER / "entrypoint.sh", "sh", "-c", "echo $$; exit 7", FDB_CLUSTER_FILE=cluster_file)
    said, _ = process.communicate(timeout=60)
    assert int(said) == process.pid
    assert process.returncode == 7


def test_a_database_that_answers_is_healthy(tmp_path):
    """Status 0, and no word."""
    url = f"embedded:{tmp_path}/data"
    assert run(sys.executable, DOCKER / "healthcheck.py", FDBQUEUE_URL=url) == (0, "", "")


def test_a_database_that_does_not_is_not(tmp_path):
    """Status 1, and the reason in one line."""
    (tmp_path / "file").write_text("")
    status, said, complained = run(
        sys.executable, DOCKER / "healthcheck.py", FDBQUEUE_URL=f"embedded:{tmp_path}/file/data"
    )
    assert (status, said) == (1, "")
    assert len(complained.splitlines()) == 1


FDBCLI = """#!/bin/sh
# Available once it has been configured so often.
echo "$*" >> "{log}"
case "$*" in
    *configure*) echo . >> "{done}" ;;
    *) [ "$(cat "{done}" 2>/dev/null | wc -l)" -ge {needed} ] && echo "The database is available." ;;
esac
"""


def init(tmp_path, needed, tries=3):
    """The status, and what fdbcli was told to do."""
    fake, log = tmp_path / "fdbcli", tmp_path / "log"
    fake.write_text(FDBCLI.format(log=log, done=tmp_path / "done", needed=needed))
    fake.chmod(0o755)
    given = {"FDBCLI": fake, "FDB_CLUSTER_FILE": tmp_path / "fdb.cluster", "TRIES": tries, "PAUSE_S": 0}
    status, _, _ = run(DOCKER / "init-cluster.sh", **given)
    return status, [line for line in log.read_text().splitlines() if "configure" in line]


def test_a_new_cluster_is_configured_once(tmp_path):
    """Double redundancy, on disk."""
    status, configured = init(tmp_path, needed=1)
    assert status == 0
    assert len(configured) == 1
    assert configured[0].endswith("configure new double ssd")


def test_a_cluster_that_has_a_database_is_left_alone(tmp_path):
    """Nothing is configured at all."""
    assert init(tmp_path, needed=0) == (0, [])


def test_a_cluster_that_never_comes_is_a_failure(tmp_path):
    """What waits for it does not start."""
    status, configured = init(tmp_path, needed=99)
    assert status == 1
    assert len(configured) == 3


def test_the_application_makes_its_queue_and_finds_it_again(tmp_path):
    """The handler of the application takes the payload that the page puts."""
    url = f"embedded:{tmp_path}/data"
    for _ in range(2):
        assert run(sys.executable, DOCKER / "app" / "emails.py", FDBQUEUE_URL=url)[0] == 0
    with fdbqueue.open(url) as db:
        assert fdbqueue.TaskQueue.open(db, "emails").kind == "fifottl"
    handled = "import emails, fdbqueue; emails.handle(fdbqueue.Task('1', 't', {'to': 'ada'}))"
    status, said, _ = run(
        sys.executable, "-c", f"import sys; sys.path.insert(0, {str(DOCKER / 'app')!r}); {handled}"
    )
    assert (status, said) == (0, "to ada: welcome\n")


def test_the_fleet_starts_as_its_services_say(tmp_path):
    """Their commands, in the image's working directory; a task is worked on, and SIGTERM is a good end."""
    services, url = compose()["services"], f"embedded:{tmp_path}/data"
    image = ("env", "--chdir", DOCKER / "app")
    assert run(*image, *services["queues"]["command"], FDBQUEUE_URL=url)[0] == 0
    with fdbqueue.open(url) as db:
        fdbqueue.TaskQueue.open(db, "emails").put(db, {"to": "ada"})
    worker = start(*image, *services["worker"]["command"], FDBQUEUE_URL=url)
    assert worker.stdout.readline() == "to ada: welcome\n"
    worker.terminate()
    _, complained = worker.communicate(timeout=60)
    assert worker.returncode == 0, complained
