"""The commands on whole queues: queues, create, stats, pause, resume, drop, top and completion."""

import json
import os
import signal
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Group, TaskQueue, Worker
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.operate.cli.commands import COMMANDS, cli
from fdbqueue.operate.cli.show import span
from tests.cli.shell import INTERRUPTED, Shell, Within, rest_of
from tests.support import wait_until


def test_a_queue_is_created_listed_and_dropped(program: Within) -> None:
    created = "fdbqueue: 'mail' is created, of kind fifottl, with --ttr 60\n"
    assert program.run("create", "mail", "--ttr", "60") == (0, "", created)
    program.run("put", "plain", "--create", "1", "2")
    assert program.run("put", "mail", "a", "b") == (0, "", "")
    assert program.run("queues") == (0, "mail\tfifottl\t2\t0\t0\t0\t0\t\nplain\tqueue\t2\t\t\t\t\t\n", "")
    mail, plain = program.rows("queues")
    assert (mail["options"], mail["tasks"]["ready"], mail["paused"]) == ({"ttr": 60.0}, 2, False)
    assert (plain["kind"], plain["items"]) == ("queue", 2)
    refused = "fdbqueue: drop would remove 'mail' and the 2 items in it: confirm with --yes\n"
    assert program.run("drop", "mail") == (1, "", refused)
    assert program.run("drop", "mail", "--yes") == (0, "", "fdbqueue: 'mail' is gone\n")
    assert program.run("drop", "plain", "--yes", "--json")[1] == '{"queue":"plain","dropped":true}\n'
    assert program.run("queues") == (0, "", "")


def test_dropping_leaves_no_key(tmp_path: Path) -> None:
    shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
    shell.run("create", "u", "--kind", "utube")
    shell.run("put", "u", *map(str, range(450)))
    with fdbqueue.open(shell.url) as db:
        TaskQueue.open(db, "u").bury(db, TaskQueue.open(db, "u").tasks(db, "r", 1)[0].id)
        contents = TaskQueue.open(db, "u").contents
    assert shell.run("drop", "u", "--yes")[0] == 0
    with fdbqueue.open(shell.url) as db:
        assert list(db.get_range_startswith(contents.key())) == []


def test_a_queue_in_use_is_not_dropped_and_keeps_its_tasks(program: Within) -> None:
    program.run("create", "q")
    program.run("put", "q", "1", "2", "3")
    with fdbqueue.open(program.url) as db:
        TaskQueue.open(db, "q", root=program.space).take(db, 0)
        busy = "fdbqueue: The queue 'q' cannot be dropped: tasks are taken.\n"
        assert program.run("drop", "q", "--yes") == (1, "", busy)
        assert program.run("queues")[1].split() == ["q", "fifo", "2", "1", "0", "0", "0"]


def test_a_second_create_needs_if_not_exists(program: Within) -> None:
    assert program.run("create", "q", "--kind", "fair", "--weight", "gold=3", "--weight", "7=2")[0] == 0
    said = "fdbqueue: A queue named 'q' exists already, of kind fair; --if-not-exists lets that succeed\n"
    assert program.run("create", "q") == (1, "", said)
    status, out, _ = program.run("create", "q", "--if-not-exists", "--json")
    assert (status, json.loads(out)["kind"]) == (0, "fair")
    assert json.loads(out)["options"]["weights"] == {"gold": 3, "7": 2}
    assert program.run("create", "plain", "--kind", "queue")[0] == 0
    assert program.run("create", "plain", "--kind", "queue")[0] == 1
    assert program.run("create", "plain", "--kind", "queue", "--if-not-exists")[0] == 0
    assert program.run("put", "plain", "1")[0] == 0


def test_a_create_tells_the_options_in_force(program: Within) -> None:
    """A queue with other options than those that are given is a refusal, unless any will do."""
    program.run("create", "q", "--kind", "fair", "--weight", "gold=3", "--ttr", "9")
    ask = ("create", "q", "--kind", "fifo", "--if-not-exists")
    refusal = "A queue named 'q' exists already, with --kind fair; asked for was --kind fifo"
    cure = "--if-not-exists --any-options takes it as it is"
    assert program.run(*ask) == (1, "", f"fdbqueue: {refusal}; {cure}\n")
    told = "fdbqueue: 'q' exists already, of kind fair, with --ttr 9, --weight gold:3\n"
    assert program.run(*ask, "--any-options") == (0, "", told)
    assert program.run("create", "q", "--ttr", "9", "--kind", "fair", "--if-not-exists") == (0, "", told)
    plain = ("create", "plain", "--kind", "queue", "--if-not-exists")
    assert program.run(*plain, "--partitions", "2")[0] == program.run(*plain)[0] == 0
    assert program.run(*plain, "--partitions", "1")[0] == program.run("create", "q", *plain[2:])[0] == 1


def test_weights_are_for_any_task_key(program: Within) -> None:
    weights = ("--weight", "null=2", "--weight", "[1,[2]]=3")
    status, out, _ = program.run("create", "q", "--kind", "fair", "--json", *weights)
    assert (status, json.loads(out)["options"]["weights"]) == (0, {"null": 2, "[1,[2]]": 3})
    for none in ('{"a":1}=2', "a", "a=b"):
        assert program.run("create", "r", "--kind", "fair", "--weight", none)[0] == 2


def test_statistics_are_lines_of_name_and_value(program: Within) -> None:
    program.run("create", "q", "--kind", "limfifottl", "--capacity", "2")
    program.run("put", "q", "1", "2")
    status, _, err = program.run("put", "q", "3")
    assert (status, err.startswith("fdbqueue: The queue 'q' has no room for 1 task:")) == (1, True)
    assert "Nothing was put." in err
    lines = dict(line.split("\t") for line in program.run("stats", "q")[1].splitlines())
    assert lines["kind"] == "limfifottl"
    assert (lines["options.capacity"], lines["tasks.ready"], lines["calls.put"]) == ("2", "2", "2")
    program.run("create", "r")
    everything = program.run("stats")[1].splitlines()
    assert {line.split("\t")[0] for line in everything} == {"q", "r"}
    assert [json.loads(line)["name"] for line in program.run("stats", "--json")[1].splitlines()] == ["q", "r"]


@pytest.mark.parametrize("of", ["words", "lines"])
def test_a_put_tells_the_values_before_the_queue_was_full(program: Within, tmp_path: Path, of: str) -> None:
    (tmp_path / "lines").write_text("1\n2\n3\n")
    values = ("1", "2", "3") if of == "words" else ("--lines", str(tmp_path / "lines"))
    program.run("create", "q", "--kind", "limfifottl", "--capacity", "2")
    status, _, err = program.run("put", "q", *values)
    told = "The first 2 were put. Then the queue 'q' was full: it holds 2 tasks, its capacity is 2."
    assert (status, err.splitlines()[-1]) == (1, f"fdbqueue: {told}")
    assert len(program.run("tasks", "q")[1].splitlines()) == 2


def test_no_task_of_a_paused_queue_is_taken_until_resume(program: Within) -> None:
    program.run("create", "q")
    program.run("put", "q", "1")
    assert program.run("pause", "q") == (0, "", "fdbqueue: 'q' is paused\n")
    assert program.run("queues")[1].split("\t")[-1] == "paused\n"
    with program.opened() as (db, queue):
        assert queue.take(db, 0) is None
        assert program.run("resume", "q", "--json")[1] == '{"queue":"q","paused":false}\n'
        assert queue.take(db, 0) is not None


def test_a_queue_of_an_unknown_kind_is_listed(tmp_path: Path) -> None:
    shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
    with fdbqueue.open(shell.url) as db:
        Registry(DEFAULT_ROOT).create(db, "odd", "peculiar", {"a": 1})
    assert shell.run("queues") == (0, "odd\tpeculiar\t\t\t\t\t\t\n", "")
    for command in (["tasks"], ["drop"], ["drop", "--yes"]):
        said = "fdbqueue: 'odd' is of kind peculiar, which this release does not know\n"
        assert shell.run(*command, "odd") == (2, "", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["create", "q", "--kind", "nonsense"], "nonsense"),
        (["create", "q", "--kind", "fifo", "--ttl", "3"], "does not support"),
        *(
            (["create", "q", "--kind", "queue", option, value], f"{option} is for task queues")
            for option, value in (("--ttr", "3"), ("--priority", "3"), ("--weight", "k=2"), ("--retain", "9"))
        ),
        (["create", "q", "--kind", "fair", "--weight", "gold"], "KEY=N"),
        (["put", "new", "1", "--create", "--ttl", "3"], "--ttl is for task queues"),
        (["put", "plain", "1", "--key", "3"], "--key is for task queues"),
        (["put", "fifottl", "1", "--timeout", "3"], "does not support a timeout of a put"),
        (["put", "fifottl", "1", "--timeout", "-1"], "-1"),
        *((["put", "fifottl", "1", f"--{option}=nan"], "nan") for option in ("delay", "ttl", "ttr")),
        *((["put", "fifottl", "1", f"--delay={delay}"], "inf") for delay in ("inf", "-inf")),
        *((["put", "fifottl", "1", f"--{option}=0"], "0") for option in ("ttl", "ttr")),
        *((["create", "r", "--kind", "fifottl", f"--{option}=0"], "0") for option in ("ttl", "ttr")),
        (["get", "plain", "--wait", "nan"], "nan"),
        *(
            (["top", "-n", "2", "--interval", seconds], "within a hundred years")
            for seconds in ("inf", "1e300")
        ),
        (["work", "fifo", "m:f", "--grace", "nan"], "nan"),
        (["kick", "fifo", "--all", "-n", "3"], "not both"),
        (["--root", "", "size", "plain"], "empty part"),
        (["--root", "a//b", "size", "plain"], "empty part"),
        (["--url", "", "size", "plain"], "names no engine"),
        (["put", "fifo", "1", "--priority", "3"], "does not support"),
        (["put", "fifo", "1", "--key", "k"], "does not support"),
        (["bury", "fifo", "no-id"], "id"),
        (["bury", "fifo"], "ID"),
        (["tasks", "fifo", "--state", "happy"], "happy"),
        (["tasks", "plain"], "plain queue"),
        (["pause", "plain"], "plain queue"),
        (["top", "plain"], "plain queue"),
        (["completion", "cmd"], "cmd"),
    ],
)
def test_a_mistake_is_status_2_and_one_line(known: Within, arguments: list[str], said: str) -> None:
    err = known.mistake(*arguments)
    assert err.startswith("fdbqueue: ")
    assert said in err


@pytest.fixture
def known(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Within:
    """A database with a task queue and a plain queue."""
    shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
    with fdbqueue.open(shell.url) as db:
        TaskQueue.create(db, "fifo")
        TaskQueue.create(db, "fifottl", "fifottl")
        fdbqueue.Queue.named(db, "plain")
    return Within(shell, capfd)


# -- top ------------------------------------------------------------------------------------------------


def test_top_in_a_pipe_prints_a_line_per_queue_and_interval(program: Within) -> None:
    program.run("create", "q")
    program.run("create", "r")
    program.run("put", "q", "1", "2")
    status, out, _ = program.run("top", "-n", "2", "--interval", "0.1")
    lines = [line.split("\t") for line in out.splitlines()]
    assert (status, [line[0] for line in lines]) == (0, ["q", "r", "q", "r"])
    assert lines[0][1:6] == ["2", "0", "0", "0", ""]
    assert lines[2][1:6] == ["2", "0", "0", "0", "0.0"]
    only = program.row("top", "q", "-n", "1")
    assert (only["queue"], only["ready"], only["workers"], only["paused"]) == ("q", 2, 0, False)
    assert only["waits_s"] > 0
    assert (only["due"], set(only["ends"].values())) == (0, {0})


def test_looks_of_queues_and_top_sweep_nothing(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    program.run("put", "q", "1", "--delay", "0.001")

    def due_of(*line: str) -> int:
        found = program.row(*line)
        due: int = found.get("tasks", found)["due"]
        return due

    wait_until(lambda: due_of("queues") == 1)
    assert [due_of("top", "q", "-n", "1"), due_of("queues")] == [1, 1]


def test_stats_and_top_count_ended_and_due_tasks(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    with program.opened() as (db, queue):
        for _ in range(2):
            queue.put(db, 1)
            queue.ack(db, queue.take(db, 0))
        queue.delete(db, queue.put(db, 2))
        queue.bury(db, queue.put(db, 3).id)
        queue.put(db, 4, ttl=0.01)
        queue.put(db, 5, delay=60)
        wait_until(lambda: queue.statistics(db)["ends"]["expired"] == 1)
    ends = {"acked": 2, "expired": 1, "deleted": 1, "cancelled": 0, "buried": 1}
    found = program.row("stats", "q")
    assert (found["ends"], found["tasks"]["done"]) == (ends, 4)
    assert (found["tasks"]["delayed"], found["tasks"]["due"]) == (1, 0)
    found = program.row("top", "q", "-n", "1")
    assert (found["ends"], found["due"]) == (ends, 0)
    _, out, _ = program.run("top", "q", "-n", "1")
    assert out.rstrip("\n").split("\t")[-10:-3] == ["0", "2", "1", "1", "0", "0", "1"]
    lines = dict(line.split("\t") for line in program.run("stats", "q")[1].splitlines())
    assert (lines["ends.acked"], lines["ends.deleted"], lines["tasks.due"]) == ("2", "1", "0")


def test_stats_sweep_where_no_worker_runs(program: Within) -> None:
    program.run("create", "q", "--kind", "fifottl")
    program.run("put", "q", "1", "--delay", "0.1")

    def seen() -> dict[str, int]:
        found: dict[str, int] = program.row("stats", "q")["tasks"]
        return found

    wait_until(lambda: (tasks := seen())["ready"] == 1 and not tasks["delayed"])


def test_top_shows_rates_and_workers(shell: Shell, program: Within) -> None:
    program.run("create", "q")
    watching = shell.start("top", "q", "--json", "--interval", "0.2")
    watching.stdout.readline()
    with shell.opened() as (db, queue):
        queue.put_many(db, range(10))
        worker = Worker(db, queue, print, threads=1, root=shell.space)
        worker.start()
        seen = json.loads(watching.stdout.readline())
        while not seen["workers"] or seen["ready"] or seen["taken"]:
            seen = json.loads(watching.stdout.readline())
        worker.stop()
        assert worker.join(20)
    watching.send_signal(signal.SIGINT)
    rest_of(watching)
    assert watching.returncode == INTERRUPTED
    assert (seen["ready"], seen["taken"], seen["workers"]) == (0, 0, 1)


def test_stats_names_noisy_keys(program: Within) -> None:
    program.run("create", "f", "--kind", "fair", "--ttr", "600")
    for key in ("loud", "loud", "loud", "loud", "calm"):
        program.run("put", "f", "x", "--key", key)
        program.run("take", "f")
    assert program.row("stats", "f")["noisy"] == [{"key": "loud", "taken": 4, "share": 0.8}]
    assert "noisy.loud\t80% of the taken tasks\n" in program.run("stats", "f")[1]
    program.run("create", "o")
    assert "noisy" not in program.row("stats", "o")


def test_a_queue_that_charges_time_tells_so(program: Within) -> None:
    program.run("create", "f", "--kind", "fair", "--charge", "time", "--ttr", "600")
    assert program.row("stats", "f")["options"]["charge"] == "time"
    assert "options.charge\ttime\n" in program.run("stats", "f")[1]
    status, _, said = program.run("put", "f", "x", "--key", "a", "--cost", "2")
    assert (status, "the queue charges time" in said) == (2, True)
    status, _, said = program.run("alter", "f", "--charge", "cost")
    assert (status, "cannot change: its rounds would have another length" in said) == (2, True)
    status, _, said = program.run("create", "u", "--kind", "utube", "--charge", "time")
    assert (status, "charge" in said) == (2, True)
    assert [row["name"] for row in program.rows("queues")] == ["f"]


def test_top_shows_the_busiest_keys(program: Within) -> None:
    program.run("create", "u", "--kind", "utube")
    for key in ("one", "two", "two"):
        program.run("put", "u", "x", "--key", key)
    found = program.row("top", "u", "-n", "1")
    assert [(key["key"], key["ready"]) for key in found["keys"]] == [("two", 2), ("one", 1)]
    found = program.row("top", "-n", "1")
    assert "keys" not in found


def test_top_on_a_terminal_is_a_table(shell: Shell, program: Within) -> None:
    program.run("create", "[bold]q[/bold]", "--kind", "utube")
    program.run("put", "[bold]q[/bold]", "1", "--key", '"[red]"')
    screen = shell.screen("top", "[bold]q[/bold]", "-n", "1")
    assert "\x1b" in screen
    for word in ("ready", "buried", "[bold]q[/bold]", '"[red]"'):
        assert word in screen


def test_lengths_of_time_are_short_texts() -> None:
    spans = [span(seconds) for seconds in (None, 0.4, 59, 60, 61, 3_600, 7_260, 86_400, 270_000)]
    assert spans == ["", "0s", "59s", "1m", "1m1s", "1h", "2h1m", "1d", "3d3h"]


# -- completion -----------------------------------------------------------------------------------------


def completions(shell: Shell, words: str) -> list[str]:
    """Return the completions of bash for the last of `words`."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    environment = os.environ | asked | {"_FDBQUEUE_COMPLETE": "bash_complete", "FDBQUEUE_URL": shell.url}
    shell.where = []
    out = shell.run(env=environment)[1]
    return [line.partition(",")[2] for line in out.split()]


def test_a_shell_completes_commands_and_queues(tmp_path: Path) -> None:
    shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
    with fdbqueue.open(shell.url) as db:
        for name in ("mails", "maps", "other"):
            TaskQueue.create(db, name)
    assert completions(shell, "fdbqueue rele") == ["release", "release-all"]
    assert completions(shell, "fdbqueue stats ma") == ["mails", "maps"]
    assert completions(shell, "fdbqueue top other ma") == ["mails", "maps"]
    assert completions(shell, f"fdbqueue stats --url embedded:{tmp_path}/nowhere ma") == []


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_completion_script_is_for_the_shell(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = Within(Shell("memory:", [], Path()), capfd).run("completion", name)
    assert status == 0
    assert "_FDBQUEUE_COMPLETE" in out


def test_the_table_of_commands_has_their_help_and_module() -> None:
    cli.load()
    for name, command in cli.commands.items():
        assert COMMANDS[name].help == command.get_short_help_str(200), name
    assert {*cli.commands} == {*COMMANDS}


@pytest.mark.parametrize("group", ["elements", "import"])
def test_a_group_without_a_command_prints_its_help(group: str, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, err = Within(Shell("memory:", [], Path()), capfd).run(group)
    assert (status, err) == (0, "")
    assert out.startswith(f"Usage: fdbqueue {group} ")
    assert "\nCommands:\n" in out


def held_group(program: Shell) -> Group:
    """A group with a buried member."""
    with program.opened() as (db, queue):
        group = Group.create(db, root=program.space)
        group.put(db, queue, "x")
        queue.bury(db, queue.take_many(db, 1)[0])
    return group


def test_limits_and_schedules_are_with_their_queue(program: Within) -> None:
    program.run("limit", "set", "api", "--slots", "2")
    program.run("create", "q", "--limit", "api")
    program.run("create", "r")
    program.run("schedule", "create", "tick", "q", "--every", "3600")
    q, r = program.rows("top", "-n", "1")
    assert [(one["name"], one["slots"], one["used"]) for one in q["limits"]] == [("api", 2, 0)]
    assert [(one["name"], one["late_s"]) for one in q["schedules"]] == [("tick", 0.0)]
    assert (r["limits"], r["schedules"]) == ([], [])
    assert len(program.run("top", "-n", "1")[1].splitlines()) == 2


def test_groups_have_a_line_if_there_are_any(program: Within) -> None:
    program.run("create", "q")
    group = held_group(program)
    queue, groups = program.rows("top", "-n", "1")
    assert queue["queue"] == "q"
    assert groups["groups"] == {"unfinished": 1, "held": 1, "first_held": [group.id], "whole": True}
    assert len(program.rows("top", "q", "-n", "1")) == 1


def test_a_terminal_has_tables_of_them(shell: Shell) -> None:
    shell.run("limit", "set", "[bold]api", "--slots", "2")
    shell.run("create", "q", "--limit", "[bold]api")
    shell.run("schedule", "create", "tick", "q", "--every", "3600", "--paused")
    group = held_group(shell)
    screen = shell.screen("top", "-n", "1")
    for word in ("[bold]api", "2 at a time", "tick", "paused", "held by burials", group.id):
        assert word in screen
