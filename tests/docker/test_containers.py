"""The images and compose.yaml, in real containers. By hand, where the images are built (docs/tests.md)."""

from collections import Counter
from threading import Thread

import pytest

from tests.docker.engine import COMMAND, docker, fleet, health, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not COMMAND, reason="needs a container engine: FDBQUEUE_TEST_COMPOSE='docker compose'"
    ),
]
WORKERS, THREADS = 3, 8
TASKS = 2_000


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("compose"), WORKERS) as made:
        yield made


def names(word, number=TASKS):
    return [f"{word}{index}@example.com" for index in range(number)]


def handled(project, sent):
    """How often each of the names was handled."""
    wanted = set(sent)
    return Counter(name for name in project.handled() if name in wanted)


def put_beside(project, sent):
    """Put the names while the test goes on."""
    thread = Thread(target=project.put, args=(sent,))
    thread.start()
    return thread


def all_done(project, before, sent):
    until(lambda: project.done() - before == len(sent))


def test_a_fleet_becomes_healthy(project):
    """Compose waited for the servers, for the database and for the queue before it started the workers."""
    assert len(project.containers("worker")) == WORKERS
    until(lambda: {health(one) for one in project.containers("worker")} == {"healthy"})


def test_a_rolling_restart_runs_each_task_once(project):
    """A stopped worker finishes its tasks, and gives back those that it has not begun."""
    before, sent = project.done(), names("rolling")
    putting = put_beside(project, sent)
    for container in project.containers("worker"):
        docker("restart", "--time", "60", container)
    putting.join()
    all_done(project, before, sent)
    assert handled(project, sent) == Counter(sent)


def test_a_killed_worker_loses_no_task(project):
    """Its running tasks, one for each thread, may run a second time."""
    before, sent = project.done(), names("killed")
    putting = put_beside(project, sent)
    killed = project.containers("worker")[0]
    docker("kill", "--signal", "KILL", killed)
    putting.join()
    docker("start", killed)
    all_done(project, before, sent)
    found = handled(project, sent)
    assert set(found) == set(sent)
    assert found.total() - len(sent) <= THREADS


def test_a_fleet_works_on_without_one_server(project):
    before, sent = project.done(), names("one")
    project.run("stop", "fdb1")
    project.put(sent)
    all_done(project, before, sent)
    project.run("start", "fdb1")


def test_the_health_check_tells_an_outage_and_its_end(project):
    """Without two of three coordinators there is no database. Workers wait for it, and are not restarted."""
    workers = project.containers("worker")
    started = [docker("inspect", "--format", "{{.State.StartedAt}}", one) for one in workers]
    project.run("stop", "fdb1", "fdb2")
    until(lambda: {health(one) for one in workers} == {"unhealthy"})
    project.run("start", "fdb1", "fdb2")
    until(lambda: {health(one) for one in workers} == {"healthy"})
    before, sent = project.done(), names("after", 100)
    project.put(sent)
    all_done(project, before, sent)
    assert started == [docker("inspect", "--format", "{{.State.StartedAt}}", one) for one in workers]


LOAD = """
import json, time, urllib.parse, urllib.request
def ask(path, **form):
    data = urllib.parse.urlencode(form).encode() if form else None
    return json.load(urllib.request.urlopen("http://127.0.0.1:8089" + path, data))
while len(ask("/stats/requests").get("workers", [])) < 2:
    time.sleep(0.5)
ask("/swarm", user_count=8, spawn_rate=8)
while ask("/stats/requests")["stats"][-1]["num_requests"] < 500:
    time.sleep(0.5)
print(ask("/stats/requests")["stats"][-1]["num_failures"])
"""


def test_a_load_test_runs_in_containers(project):
    """One master and two workers of Locust, in the image `loadtest`: 500 calls, none of which fails."""
    project.run(
        "--profile",
        "load",
        "up",
        "--detach",
        "--no-build",
        "--no-recreate",
        "--scale=locust-worker=2",
        f"--scale=worker={WORKERS}",
        "locust-worker",
    )
    assert project.python("locust-master", LOAD).strip() == "0"
    project.run("--profile", "load", "stop", "locust-worker", "locust-master")
