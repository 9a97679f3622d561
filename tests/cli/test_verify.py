"""`fdbqueue verify` and `doctor`: findings with the commands that end them, and a status for scripts."""

import json
import shlex
from types import SimpleNamespace
from typing import Any

import pytest

import fdbqueue
from fdbqueue import TaskQueue, Verification
from fdbqueue.core.database import run
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import FDBError
from fdbqueue.operate.cli.exits import CommandError
from fdbqueue.operate.cli.session import Place
from fdbqueue.tasks.stored.records import COUNTER_NAMES, TaskKeys, packed
from tests.cli.shell import Within, parsed


def test_a_sound_queue_has_status_zero(program: Within) -> None:
    program.run("create", "q", "--kind", "fifo")
    program.run("put", "q", "a task")
    status, out, err = program.run("verify", "q")
    assert (status, out) == (0, "")
    assert err.startswith("fdbqueue: 1 queue, ")
    assert err.endswith(" keys: no finding\n")


@pytest.mark.commits_by_hand  # a scan has a timeout
def test_a_finding_is_ended_by_its_cure(program: Within) -> None:
    """It is typed as it is shown, also for a name with odd characters."""
    program.run("create", "--kind", "fifo", "--", "-a q")
    with fdbqueue.open(program.url) as db:
        keys = TaskKeys(TaskQueue.open(db, "-a q", root=program.space).contents)
        run(db, lambda tr: tr.add(keys.counters, packed(COUNTER_NAMES, {"ready": 3})))
    status, out, err = program.run("verify")
    assert status == 1
    assert err.endswith(" keys: 1 finding\n")
    flaw, queue, text, cure = out.rstrip("\n").split("\t")
    assert (flaw, queue) == ("counter", "-a q")
    assert "says 3, and there are 0" in text
    assert shlex.split(cure)[0] == "fdbqueue"
    assert program.run(*shlex.split(cure)[1:])[0] == 0
    assert program.run("verify")[0] == 0


@pytest.mark.commits_by_hand  # a scan has a timeout
def test_a_program_reads_a_verification(program: Within) -> None:
    program.run("create", "q", "--kind", "fifo")
    with fdbqueue.open(program.url) as db:
        keys = TaskKeys(TaskQueue.open(db, "q", root=program.space).contents)
        db[keys.task(b"short")] = b""
    status, out, _ = program.run("verify", "--json")
    found = json.loads(out)
    assert (status, found["queues"], found["whole"]) == (1, 1, True)
    (finding,) = found["findings"]
    assert (finding["flaw"], finding["queue"], finding["mended"]) == ("unknown key", "q", False)
    assert bytes.fromhex(finding["key"]).endswith(b"short")


def test_an_unknown_queue_is_refused(program: Within) -> None:
    program.run("create", "q", "--kind", "fifo")
    status, out, err = program.run("verify", "other")
    assert (status, out) == (2, "")
    assert "there is no queue named 'other'" in err


def test_a_cluster_that_falls_silent_is_told(program: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verification may run from a timer, where nothing else would end it."""

    def silent(*_: Any, **__: Any) -> Verification:
        raise FDBError(1031)

    program.run("create", "q", "--kind", "fifo")
    monkeypatch.setattr("fdbqueue.operate.cli.proofs.verify_keys", silent)
    status, out, err = program.run("verify")
    assert (status, out) == (2, "")
    assert f"no answer from {program.url} in 60 s" in err


def test_the_timeout_of_a_verification_ends_with_it() -> None:
    """The binding has one database for all that open the cluster in a process."""
    set_ms: list[int] = []
    database: Any = SimpleNamespace(options=SimpleNamespace(set_transaction_timeout=set_ms.append))
    with pytest.raises(CommandError, match="no answer"), Place("fdb:", DEFAULT_ROOT).answering(database, 5):
        raise FDBError(1031)
    assert set_ms == [5_000, 0]


def test_an_empty_database_has_no_trouble(program: Within) -> None:
    """A latency may be told on a machine under load."""
    program.run("create", "q")
    _, out, err = program.run("doctor", "--watch", "0", "--json")
    assert err == ""
    assert {row["severity"] for row in parsed(out) if row["name"] != "latency"} == {"fine"}


@pytest.mark.commits_by_hand  # a check has a timeout
def test_the_cure_names_the_database(program: Within) -> None:
    """It can be pasted into a shell."""
    program.run("create", "q")
    program.run("put", "q", "task")
    status, out, _ = program.run("doctor", "--watch", "0")
    assert status == 1
    (told,) = [line.split("\t") for line in out.splitlines() if "\tqueues\t" in line]
    assert told[0] == "warning"
    assert shlex.split(told[3])[:3] == ["fdbqueue", "--url", program.url]
    assert told[3].endswith(" work q MODULE:FUNCTION")


@pytest.mark.commits_by_hand  # a check has a timeout
def test_a_command_within_a_cure_names_the_database(program: Within) -> None:
    program.run("create", "q", "--kind", "limfifottl", "--capacity", "1")
    program.run("put", "q", "task")
    (task,) = program.rows("tasks", "q")
    program.run("bury", "q", task["id"])
    (cure,) = [row["cure"] for row in program.rows("doctor", "--watch", "0") if "is full" in row["text"]]
    wanted = ["delete", "q", "--where", "state=buried", "--where", "class="]
    command = shlex.split(cure.split("`")[-2])
    assert (command[:3], command[-6:]) == (["fdbqueue", "--url", program.url], wanted)
    assert program.run(*command[3:])[0] == 0
    assert program.rows("tasks", "q") == []


def test_a_cure_with_fdbcli_names_the_cluster_file(program: Within) -> None:
    cure = program.rows("--url", "fdb:/no/file?tag=a", "doctor")[0]["cure"]
    assert cure.endswith("`fdbcli -C /no/file --exec status`.")


def test_a_missing_database_is_a_failure(program: Within, tmp_path) -> None:
    """Versions are told, since a report of a defect needs them."""
    status, out, err = program.run("--url", f"embedded:{tmp_path}/none", "doctor", "--json")
    assert (status, err) == (2, "")
    found = {row["name"]: row for row in parsed(out)}
    assert found["connection"]["severity"] == "failure"
    assert "there is no database" in str(found["connection"]["text"])
    assert "versions" in found
