"""waiting: the calls in the line of a queue."""

import signal

from tests.cli.shell import TERMINATED, Shell, Within
from tests.support import wait_until


def test_a_take_that_waits_is_listed_with_its_process(shell: Shell, program: Within) -> None:
    program.run("create", "q")
    assert program.run("waiting", "q") == (0, "", "")
    process = shell.start("take", "q", "--wait", "inf")
    wait_until(lambda: bool(program.rows("waiting", "q")))
    [row] = program.rows("waiting", "q")
    assert row.keys() == {"count", "since", "until", "session", "name", "processes", "for_s", "left_s"}
    [holder] = row["processes"]
    assert (row["count"], holder["process_id"]) == (1, process.pid)
    columns = program.run("waiting", "q")[1].rstrip("\n").split("\t")
    assert columns[:4] == ["1", f"{holder['host']}:{process.pid}", row["session"], ""]
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == TERMINATED
    process.communicate()
    assert program.rows("waiting", "q") == []
    program.run("put", "q", "x")
    assert program.run("take", "q")[0] == 0


def test_each_kind_with_a_line_has_the_command(program: Within) -> None:
    program.run("create", "plain", "--kind", "queue", "--partitions", "2")
    assert program.run("waiting", "plain", "-n", "5") == (0, "", "")
    program.run("elements", "add", "simple", "x", "--create")
    assert "'simple' is an element queue" in program.mistake("waiting", "simple")
