"""`doctor` and `explain` name the tasks of handlers that hang, in a real process with renewed leases."""

import os
from pathlib import Path

import pytest

from fdbqueue import workers
from fdbqueue.core import limits
from tests.cli.shell import HERE, Shell, Within, rest_of
from tests.support import wait_until

JOBS = "tests.cli.jobs"


def test_doctor_names_a_worker_whose_threads_hang(
    shell: Shell, program: Within, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HUNG_MIN_S", 0.5)
    folder = tmp_path / "jobs"
    folder.mkdir()
    shell.run("create", "q", "--kind", "fifo")
    arguments = ("q", f"{JOBS}:slow", "--processes", "1", "--threads", "2", "--grace", "0")
    env = os.environ | {"JOBS_FOLDER": str(folder)}
    process = shell.start("work", *arguments, cwd=HERE, env=env)
    with shell.opened() as (db, queue):
        queue.put_many(db, [0, 0])
        wait_until(lambda: queue.statistics(db)["calls"]["ack"] == 2)
        hung = [task.id for task in queue.put_many(db, [600, 600])]
        waits = queue.put(db, 0).id
        wait_until(lambda: any(len(one.running) == 2 for one in workers(db, root=shell.space)))
        wait_until(lambda: program.run("doctor", "--watch", "0")[0] == 1)
        [seen] = workers(db, root=shell.space)
    [told] = [row for row in program.rows("doctor", "--watch", "0") if row["severity"] == "warning"]
    assert (told["name"], sorted(told["data"]["hung"])) == ("queues", sorted(hung))
    assert f"in process {seen.process_id} on {seen.host}" in told["text"]
    assert f" bury q {' '.join(told['data']['hung'])}  # then SIGKILL" in told["cure"]
    [of_hung] = program.row("explain", "q", hung[0])["reasons"]
    assert of_hung["cure"].startswith("If it hangs, bury it")
    of_waiting = program.row("explain", "q")
    assert of_waiting["task"]["id"] == waits
    assert {run["id"] for run in of_waiting["runs"]} == set(hung)
    assert of_waiting["reasons"][-1]["cure"].endswith(f"explain q {of_waiting['runs'][0]['id']}")
    process.terminate()
    rest_of(process)
