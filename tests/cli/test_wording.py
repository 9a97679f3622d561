"""A refusal names the options of the command line, and no argument of Python."""

from pathlib import Path

import pytest

import fdbqueue
from fdbqueue import Limit, Schedule, SimpleElementQueue, TaskQueue
from fdbqueue.core.registry import PLAIN, Registry
from fdbqueue.core.registry import SIMPLE as ELEMENTS
from tests.cli.shell import Shell, Within

GROUP = "0" * 32
SAID = {
    "limit set slots --rate 3 --per 5": "The limit 'slots' has slots, and cannot be without --slots",
    "limit set starts --slots 3": "The limit 'starts' has a rate, and cannot get --slots",
    "limit set starts --rate 3": "--per is missing: it must be the seconds in which --rate tasks may start",
    "limit set slots --slots 3 --burst 4": "--burst must be left out without a --rate",
    "limit set slots --slots 3 --per-key": "The limit 'slots' was set without --per-key: delete it",
    "limit keys slots": "NAME must be a limit that was set with --per-key, not 'slots'",
    "schedule create new jobs": "--every is missing: it must be the seconds between two due times, without",
    "schedule create new jobs @daily --every 5": "--every must be left out beside an EXPRESSION",
    "schedule change tick --expression @daily --every 5": "--every must be left out beside an --expression",
    "schedule create new jobs --every 5 --timezone Asia/Tokyo": "--timezone must be UTC with --every",
    "schedule create new jobs --every 5 --priority 3": "does not support --priority",
    "schedule create new jobs --every 5 --scope queued": "--unique is missing: it must be a unique key",
    "schedule create new jobs --every 5 --limit slots": "--limit must be left out, as the queue has no",
    "cancel jobs abc": "ID must be the id of a task, not 'abc'",
    "follow jobs abc": "ID must be the id of a task, not 'abc'",
    "ended jobs abc": "ID must be the id of a task, not 'abc'",
    "put jobs 1 --after abc": "--after must be the id of a task, not 'abc'",
    "put jobs 1 --group abc": "--group must be the id of a group, not 'abc'",
    "tasks jobs --where id=abc": "--where must be the id of a task, not 'abc'",
    "bury jobs --where group=abc": "--where must be the id of a group, not 'abc'",
    "group show abc": "GROUP must be the id of a group, not 'abc'",
    "put jobs 1 --limit slots": "--limit must be left out, as the queue has no --task-limit",
    "put may 1 --limit starts": "--limit must be some of the names in the --task-limit of the queue: ",
    f"put jobs 1 --unique a --group {GROUP}": "--unique must be left out beside --group and --after",
    "put ttl 1 --unique a --debounce-max 3": "--debounce-max must be left out without --on-conflict debounce",
    "ended jobs": "does not support ended tasks: it has no --retain",
    "create new --kind fair --weight a=0": "--weight must be a whole number from 1",
    "create new --kind fifo --ttr 5": "--ttr: fifottl, limfifottl, utubettl, fair",
    "put jobs 1 --key a": "does not support --key: utube, utubettl and fair do",
    "group create --then jobs {": "'{' is not JSON",
    "elements add jobs x": "'jobs' is a task queue, of kind fifo: put, work, tasks, stats",
    "elements list plain": "'plain' is a plain queue",
    "get jobs": "'jobs' is a task queue, of kind fifo",
    "get pieces": "'pieces' is an element queue",
    "redrive start jobs --into plain": "'plain' is a plain queue",
    "schedule change tick --queue plain": "'plain' is a plain queue",
    "create new --codec nope": "'--codec': 'nope' is not one of 'json', 'bytes', 'msgpack'",
    "create new --kind queue --codec nope": "'--codec': 'nope' is not one of 'json', 'bytes', 'msgpack'",
    "put own 1": "The codec 'own' is one of another program: the command line has json, bytes and msgpack.",
    "--shared-directory --url fdb: queues": "--shared-directory must be left out for fdb:",
}
REFUSED = {
    "create jobs": "exists already, of kind fifo; --if-not-exists lets that succeed",
    "create jobs --kind fair --weight a=3": "with --kind fifo, --weight none; asked for was --kind fair,",
    "create jobs --partitions 2": "with --partitions 1; asked for was --partitions 2",
    "create plain --kind queue --partitions 2": "with --partitions 1; asked for was --partitions 2",
    "schedule create tick jobs --every 5": "create with --if-exists keep or --if-exists change",
}


@pytest.fixture
def program(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Within:
    shell = Shell(f"embedded:{tmp_path}/data", [], tmp_path)
    with fdbqueue.open(shell.url) as db:
        TaskQueue.create(db, "jobs")
        TaskQueue.create(db, "ttl", "fifottl")
        Limit.set(db, "slots", slots=3)
        Limit.set(db, "starts", rate=3, per=5)
        TaskQueue.create(db, "may", task_limits=["slots"])
        fdbqueue.Queue.named(db, "plain")
        registry = Registry()
        registry.create(db, "own", PLAIN, {"codec": "own"})
        SimpleElementQueue(registry.contents(registry.create(db, "pieces", ELEMENTS, {})))
        Schedule.create(db, "tick", queue="jobs", every=3_600)
    return Within(shell, capfd)


@pytest.mark.parametrize("line", sorted(SAID))
def test_a_mistake_names_options(program: Within, line: str) -> None:
    status, out, err = program.run(*line.split())
    assert (status, out, err.count("\n"), SAID[line] in err) == (2, "", 1, True), err


@pytest.mark.parametrize("line", sorted(REFUSED))
def test_a_refusal_names_options(program: Within, line: str) -> None:
    status, out, err = program.run(*line.split())
    assert (status, out, err.count("\n"), REFUSED[line] in err) == (1, "", 1, True), err
