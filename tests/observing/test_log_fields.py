"""Log records name the task that their thread works at."""

import logging
import threading

import pytest

from fdbqueue import Fleet, InvalidArgument, LogFields, Task, TaskQueue, TaskState, Worker
from fdbqueue.core import logger as loggers
from fdbqueue.core.logger import MESSAGE_LENGTH_MAX, TRACEBACK_LENGTH_MAX
from fdbqueue.core.logger import logger as our_logger
from fdbqueue.fleet.logs import logging_at
from tests.fleet.conftest import SOON

mine = logging.getLogger("tests.mine")


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)

    def fields(self, logger: str) -> list[tuple[str, str, int]]:
        return [(one.queue, one.task_id, one.attempt) for one in self.seen if one.name == logger]


@pytest.fixture
def records():
    """The records that a handler with LogFields is given."""
    handler, loggers = Records(), [mine, logging.getLogger("fdbqueue")]
    handler.addFilter(LogFields())
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)


def test_each_record_of_a_handler_names_its_task(db, space, queue, records):
    task = queue.put(db, "a")

    def handler(_):
        mine.info("at work")

    Worker(db, queue, handler, threads=1, root=space).run(until_empty=True)
    mine.info("at rest")
    assert records.fields("tests.mine") == [("jobs", task.id, 1), ("", "", 0)]


def test_each_record_of_a_worker_about_a_task_names_it(db, space, queue, records):
    """The plain records of our loggers have the fields, with any handler."""
    task = queue.put(db, "a")

    def handler(_):
        raise ValueError("odd")

    Worker(db, queue, handler, threads=1, backoff=SOON, attempts=2, root=space).run(until_empty=True)
    about = [one for one in records.seen if task.id in one.getMessage()]
    assert {(one.queue, one.task_id, one.attempt) for one in about} == {
        ("jobs", task.id, 1),
        ("jobs", task.id, 2),
    }
    assert [one.levelname for one in about if "started" not in one.getMessage()] == ["WARNING", "ERROR"]


def test_a_log_hides_parts_of_its_task(db, space, records):
    """Also in lines and tracebacks of the handler; a wrong path is refused."""
    queue = TaskQueue.create(db, "keyed", "utube", root=space)
    queue.put(db, {"card": "sesame"}, key="sesame key")

    def handler(task):
        mine.error("at %s", task.data, exc_info=ValueError(task.key))
        raise ValueError(f"{task.data} of {task.key}")

    records.addFilter(LogFields(["data.card", "key"]))
    Worker(db, queue, handler, threads=1, attempts=1, root=space).run(until_empty=True)
    told = "\n".join(logging.Formatter().format(one) for one in records.seen)
    assert told.count("***") == 4
    assert "sesame" not in told
    for wrong in ("data.card", ["card"], 7):
        with pytest.raises(InvalidArgument):
            Fleet(db.url, "keyed", "module:name", redact=wrong)


def test_threads_name_their_own_tasks(db, space, queue, records):
    tasks = queue.put_many(db, range(4))
    together = threading.Barrier(4)

    def handler(task):
        together.wait(60)
        mine.info("%s", task.id)

    Worker(db, queue, handler, threads=4, root=space).run(until_empty=True)
    named = {one.getMessage(): one.task_id for one in records.seen if one.name == "tests.mine"}
    assert named == {task.id: task.id for task in tasks}


def test_a_task_that_is_given_back_at_a_stop_is_named(db, space, queue, records):
    began, go_on = threading.Event(), threading.Event()

    def handler(_):
        began.set()
        go_on.wait(60)

    task = queue.put(db, "a")
    worker = Worker(db, queue, handler, threads=1, root=space)
    worker.start()
    assert began.wait(60)
    worker.stop(at_once=True)
    assert worker.join(60)
    go_on.set()
    [given_back] = [one for one in records.seen if "given back" in one.getMessage()]
    assert (given_back.queue, given_back.task_id, given_back.attempt) == ("jobs", task.id, 1)


def test_a_field_that_a_record_has_stays(records):
    mine.info("x", extra={"queue": "other"})
    mine.info("x", extra={"task_id": "1", "attempt": 7})
    assert records.fields("tests.mine") == [("other", "", 0), ("", "1", 7)]


def test_the_end_of_a_task_names_the_one_before(records):
    outer, inner = (Task(name, TaskState.TAKEN, None, attempts=1) for name in ("outer", "inner"))
    with loggers.about("jobs", outer):
        with loggers.about("jobs", inner):
            mine.info("x")
        mine.info("x")
    mine.info("x")
    assert [task for _, task, _ in records.fields("tests.mine")] == ["inner", "outer", ""]


@pytest.mark.parametrize("engine", ["memory"])
def test_a_line_of_a_handler_in_a_fleet_names_its_task(db, space, queue, monkeypatch, capsys):
    """A line of the worker has the task in its text already."""
    for logger in (mine, logging.getLogger("fdbqueue")):
        monkeypatch.setattr(logger, "propagate", False)  # to the handlers of pytest
        monkeypatch.setattr(logger, "handlers", [])  # a demo of an earlier test has left one
    task = queue.put(db, "a")
    with logging_at("debug"):  # as a process of a fleet does
        Worker(db, queue, lambda _: mine.warning("sent"), threads=1, root=space).run(until_empty=True)
    lines = [line for line in capsys.readouterr().err.splitlines() if task.id in line]
    assert sum("sent (" in line for line in lines) == 1
    assert len(lines) > 1
    assert any(line.endswith(f"sent (task {task.id} of jobs, attempt 1)") for line in lines)
    assert all(line.count(task.id) == 1 for line in lines)


def test_a_text_of_megabytes_is_cut(db, space, queue, records):
    """Each attempt logs the error: a message with a whole document would fill the disk."""
    queue.put(db, "a")

    def handler(_):
        raise ValueError("x" * 5_000_000)

    Worker(db, queue, handler, threads=1, backoff=SOON, attempts=2, root=space).run(until_empty=True)
    texts = [one.getMessage() for one in records.seen if "ValueError" in one.getMessage()]
    assert len(texts) == 2
    assert max(map(len, texts)) <= MESSAGE_LENGTH_MAX


def test_a_traceback_of_megabytes_is_cut(records):
    try:
        raise ValueError("x" * 5_000_000)
    except ValueError:
        our_logger("fdbqueue.tests").exception("odd")
    assert len(records.seen[-1].exc_text) <= TRACEBACK_LENGTH_MAX
