"""`fdbqueue doctor`: a line for each check, and an exit status for scripts."""

import json
import shlex

import pytest

from tests.cli.shell import Within


def rows(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_an_empty_database_has_no_trouble(program: Within) -> None:
    """A latency may be told on a machine under load."""
    program.run("create", "q")
    _, out, err = program.run("doctor", "--watch", "0", "--json")
    assert err == ""
    assert {row["severity"] for row in rows(out) if row["name"] != "latency"} == {"fine"}


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


def test_a_missing_database_is_a_failure(program: Within, tmp_path) -> None:
    """Versions are told, since a report of a defect needs them."""
    status, out, err = program.run("--url", f"embedded:{tmp_path}/none", "doctor", "--json")
    assert (status, err) == (2, "")
    found = {row["name"]: row for row in rows(out)}
    assert found["connection"]["severity"] == "failure"
    assert "there is no database" in str(found["connection"]["text"])
    assert "versions" in found
