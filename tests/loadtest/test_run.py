"""Whole runs, in processes of their own: the verdict is the exit status, and the ledger finds each loss."""

import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fdbqueue
from fdbqueue.core.observing import Counters
from loadtest import ledger as books
from loadtest.ledger import Book, Ledger, judge, merged
from loadtest.run import SPACE, Run, complete, erase, settle
from loadtest.threads import Threads
from tests.conftest import CLUSTER_FILE, DURABLE, SLOW, url_of

TREE = Path(__file__).parents[2]
PATH = [*filter(None, [os.environ.get("PYTHONPATH")]), str(TREE)]
LOSING = Path(__file__).with_name("losing.py")


class Locust:
    """A process of the load test, and those that it starts."""

    started: ClassVar[list["Locust"]] = []

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "loadtest", *arguments],
            cwd=TREE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(PATH), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.started.append(self)

    def end(self, timeout_s: float = 60) -> tuple[int, str]:
        """Its exit status and its output."""
        try:
            said, _ = self.process.communicate(timeout=timeout_s)
        finally:
            self.kill()
        return self.process.returncode, said

    def kill(self) -> None:
        """End the process and all that it started: one that goes on would be in the way of the next test."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture(autouse=True)
def nothing_goes_on():
    """After a test, however it ended, nothing runs that it started."""
    yield
    while Locust.started:
        Locust.started.pop().close()


def test_a_run_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    """The test fails then, and the next one finds nothing in its way."""
    port = free_port()
    processes = ("--processes", "2", "--master-bind-port", port, "--master-port", port)
    arguments = ("--headless", *processes, "-u", "4", "--run-time", "600s")
    locust = Locust("--url", f"embedded:{tmp_path}/data", *arguments)
    assert locust.process.stdout is not None
    while "2 workers connected" not in locust.process.stdout.readline():
        assert locust.process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        locust.end(timeout_s=0.1)
    assert locust.process.stdout.read() is not None  # at its end: nothing has it open


def left_behind(url: str) -> list[bytes]:
    """Keys that a run has not erased."""
    with fdbqueue.open(url) as db:
        return [bytes(row.key) for row in db.get_range_startswith(SPACE.key())]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def seconds(short: int, long: int) -> tuple[str, ...]:
    return "--headless", "--only-summary", "--run-time", f"{long if SLOW else short}s"


@pytest.mark.in_turn(4)
def test_a_run_loses_nothing_and_writes_its_report(tmp_path):
    """Every kind of user on the embedded engine, up a ramp; an HTML report, and two plots.

    matplotlib finds no cache of fonts, as the first time on a machine.
    """
    url = f"embedded:{tmp_path}/data"
    out = tmp_path / "out"
    files = ("--html", f"{out}/report.html", "--plots", str(out))
    arguments = ("--url", url, "--shape", "ramp", "-u", "32", *files, *seconds(5, 60))
    status, said = Locust(*arguments, MPLCONFIGDIR=str(tmp_path / "fonts")).end(180)
    assert status == 0, said
    assert "verdict: ok" in said
    assert "<html" in (out / "report.html").read_text()
    for name in ("load.png", "conflicts.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    for request in ("enqueue", "dequeue", "put", "take", "ack"):
        assert f" {request} " in said
    assert not left_behind(url)


@pytest.mark.parametrize(("fault", "expected"), [("lost", " lost,"), ("twice", " delivered twice,")])
def test_a_planted_fault_fails_the_run(tmp_path, fault, expected):
    """Exit status 1, and the first items by name."""
    arguments = ("-f", str(LOSING), "--url", f"embedded:{tmp_path}/data", "-u", "4", *seconds(2, 2))
    status, said = Locust(*arguments, FAULT=fault).end()
    assert status == 1, said
    assert "verdict: FAILED" in said
    assert f" 0{expected}" not in said


@pytest.mark.in_turn(4)
def test_a_master_judges_what_its_workers_did(tmp_path):
    """Two workers on one directory; one verdict, their counters added up."""
    port, url = free_port(), ("--url", f"embedded:{tmp_path}/data")
    workers = [Locust(*url, "--worker", "--master-port", port) for _ in range(2)]
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", "2")
    status, said = Locust(*url, "--master", *bind, "-u", "8", *seconds(3, 30)).end(120)
    ends = [worker.end() for worker in workers]
    assert status == 0, (said, ends)
    assert "verdict: ok" in said
    assert " 0 requests" not in said
    assert [code for code, _ in ends] == [0, 0]
    assert not left_behind(url[1])


@pytest.mark.in_turn(4)
def test_a_worker_that_opens_after_the_end_leaves_nothing(tmp_path):
    """The run of one second ends while its worker still opens the database."""
    port, url = free_port(), ("--url", f"embedded:{tmp_path}/data")
    worker = Locust("-f", str(LOSING), *url, "--worker", "--master-port", port, FAULT="late")
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", "1")
    status, said = Locust("-f", str(LOSING), *url, "--master", *bind, *seconds(1, 1), FAULT="lost").end()
    worker.end()
    assert status == 1, said
    assert "verdict: FAILED: 0 items produced" in said
    assert not left_behind(url[1])


@pytest.mark.in_turn(4)
def test_one_command_starts_its_workers_itself(tmp_path):
    """A master and two workers; each is waited for, and no word is said of that."""
    url, port = f"embedded:{tmp_path}/data", free_port()
    processes = ("--processes", "2", "--master-bind-port", port, "--master-port", port)
    status, said = Locust("--url", url, *processes, "-u", "4", *seconds(5, 20)).end()
    assert status == 0, said
    assert "verdict: ok" in said
    assert "Traceback" not in said
    assert not left_behind(url)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("worker_count", [0, 1])
def test_a_run_that_produced_nothing_proves_nothing(tmp_path, worker_count):
    """Nothing was lost because there was nothing to lose: exit status 1, alone or as a master."""
    port, url = free_port(), ("--url", f"embedded:{tmp_path}/data")
    users = (*url, "Consumer", "-u", "2", *seconds(2, 2))
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", "1")
    workers = [Locust(*url, "--worker", "--master-port", port) for _ in range(worker_count)]
    status, said = Locust(*users, *(("--master", *bind) if workers else ())).end()
    for worker in workers:
        worker.end()
    assert status == 1, said
    assert "verdict: FAILED: 0 items produced" in said
    assert "this run proves nothing" in said
    assert not left_behind(url[1])


@pytest.mark.slow
def test_a_worker_that_is_killed_spoils_the_verdict(tmp_path):
    """It held unknown items when it died; the items of the others are all there."""
    port, url = free_port(), ("--url", f"embedded:{tmp_path}/data")
    workers = [Locust(*url, "--worker", "--master-port", port) for _ in range(2)]
    bind = ("--master-bind-host", "127.0.0.1", "--master-bind-port", port, "--expect-workers", "2")
    master = Locust(*url, "--master", *bind, "-u", "8", "--headless", "--run-time", "12s")
    time.sleep(6)  # in the middle of it: which moment does not matter
    workers[0].process.send_signal(signal.SIGKILL)
    status, said = master.end(180)
    for worker in workers:
        worker.end()
    assert status == 1, said
    assert f"no final report from {workers[0].process.pid}-" in said


def test_an_interrupted_run_is_judged_as_any_other(tmp_path):
    """SIGTERM in the middle, as when a container is stopped: the books are closed, the queues drained."""
    locust = Locust("--url", f"embedded:{tmp_path}/data", "--headless", "-u", "4", "--run-time", "60s")
    assert locust.process.stdout is not None
    for line in locust.process.stdout:
        if "All users spawned" in line:
            break
    locust.process.send_signal(signal.SIGTERM)
    status, said = locust.end()
    assert status == 0, said
    assert "verdict: ok" in said


def test_the_web_ui_tells_the_counters(tmp_path):
    """At /fdbqueue, beside Locust's own pages."""
    port = free_port()
    ui = ("--web-host", "127.0.0.1", "--web-port", port, "--autostart", "--autoquit", "0")
    locust = Locust("--url", f"embedded:{tmp_path}/data", *ui, "-u", "2", "--run-time", "3s")
    told = json.loads(page(f"http://127.0.0.1:{port}/fdbqueue"))
    status, said = locust.end()
    assert status == 0, said
    assert set(told["counters"]) == {field.name for field in dataclasses.fields(Counters)}
    assert "verdict: ok" in said


PAGE_S = 20


def page(url: str) -> str:
    until = time.monotonic() + PAGE_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=PAGE_S) as answer:
                text: str = answer.read().decode()
                return text
        except urllib.error.URLError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)  # until it listens


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--url", "http://elsewhere"), "http://elsewhere"),
        (("--url", "memory:", "--master"), "memory: belongs to one process"),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_in_one_line(arguments, expected):
    """Exit status 2; nothing has begun."""
    status, said = Locust(*arguments, "--headless", "--master-bind-port", free_port()).end()
    assert status == 2, said
    assert [expected in line for line in said.splitlines() if line.startswith("loadtest:")] == [True]


def test_a_run_without_a_verdict_is_no_success(tmp_path):
    """Its work is unknown: here the ledger cannot be read at the end."""
    arguments = ("-f", str(LOSING), "--url", f"embedded:{tmp_path}/data", "-u", "4", *seconds(2, 2))
    status, said = Locust(*arguments, FAULT="unreadable").end()
    assert status == 1, said
    assert "verdict: none" in said


def test_sigterm_ends_a_run_with_a_blocked_loop(tmp_path):
    """Its handlers cannot run then; exit status 1."""
    arguments = ("-f", str(LOSING), "--url", f"embedded:{tmp_path}/data", "-u", "4", *seconds(1, 1))
    locust = Locust(*arguments, FAULT="blocked")
    assert locust.process.stdout is not None
    while "the loop is blocked" not in locust.process.stdout.readline():
        assert locust.process.poll() is None
    locust.process.send_signal(signal.SIGTERM)
    status, said = locust.end()
    assert status == 1, said
    assert "verdict: none" in said


@pytest.mark.skipif(CLUSTER_FILE is None, reason="FDB_CLUSTER_FILE names no cluster")
def test_a_cluster_that_does_not_answer_is_refused(tmp_path):
    """Its client would wait for ever; exit status 2."""
    (tmp_path / "fdb.cluster").write_text(f"nobody:here@127.0.0.1:{free_port()}")
    status, said = Locust("--url", f"fdb:{tmp_path}/fdb.cluster", "--headless", "--run-time", "5s").end()
    assert status == 2, said
    assert "it does not answer" in said


def test_patched_threads_are_refused_and_the_cure_is_named():
    """As `locust -f loadtest/locustfile.py` would have them."""
    done = subprocess.run(
        [sys.executable, "-c", "import locust, loadtest"],
        cwd=TREE,
        env={name: value for name, value in os.environ.items() if not name.startswith("LOCUST")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "LOCUST_SKIP_MONKEY_PATCH=1" in done.stderr


ITEMS = [("a", number) for number in range(3)]


@pytest.fixture
def ledger(space):
    return Ledger(space)


@pytest.fixture
def book(db, ledger):
    return Book(db, ledger, "a")


def closed(book, produced, consumed, doubtful=()):
    for item in produced:
        book.produced(item)
    for item in consumed:
        book.consumed(item)
    for item in doubtful:
        book.doubtful(item)
    book.close()


def test_every_item_delivered_once_holds(db, ledger, book):
    """In whatever order."""
    closed(book, ITEMS, reversed(ITEMS))
    verdict = judge(db, ledger)
    assert verdict.holds
    assert (verdict.produced, verdict.consumed) == (3, 3)


def test_an_item_that_was_not_delivered_is_lost(db, ledger, book):
    """And named."""
    closed(book, ITEMS, ITEMS[:2])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert verdict.lost == 1
    assert "lost: ('a', 2)" in str(verdict)


def test_two_deliveries_are_two_although_the_item_is_one(db, ledger, book):
    """A delivery has an id of its own."""
    closed(book, ITEMS, [*ITEMS, ITEMS[0]])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert (verdict.twice, verdict.lost, verdict.consumed) == (1, 0, 4)


def test_a_delivery_of_an_item_never_produced_is_a_fault(db, ledger, book):
    """Where should it come from?"""
    closed(book, ITEMS, [*ITEMS, ("b", 0)])
    assert judge(db, ledger).unknown == 1


def test_a_ledger_without_items_holds_nothing(db, ledger, book):
    """A run in which every call failed proves nothing: there was nothing to lose."""
    closed(book, [], [], doubtful=[("a", 7)])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert "this run proves nothing" in str(verdict)


def test_an_item_of_a_failed_call_may_be_there_or_not(db, ledger, book):
    """Once at most."""
    closed(book, ITEMS, [*ITEMS, ("a", 7)], doubtful=[("a", 7), ("a", 8)])
    verdict = judge(db, ledger)
    assert verdict.holds
    assert verdict.doubtful == 2


def test_a_process_with_an_open_book_spoils_the_verdict(db, ledger, book):
    """Some of its work is unknown."""
    book.produced(ITEMS[0])
    verdict = judge(db, ledger)
    assert not verdict.holds
    assert verdict.open_books == ["a"]


def test_a_write_of_the_ledger_that_is_repeated_is_one(db, ledger):
    """As after a commit with an unknown result."""
    with_ledger = fdbqueue.transactional(lambda tr: ledger.consumed(tr, ITEMS[0], b"delivery"))
    assert [with_ledger(db), with_ledger(db)] == [True, False]


def test_threads_share_a_book(db, ledger, book, rounds):
    """Each row is written once, by any thread."""
    count = rounds(1_200, 20_000)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(book.produced, [("a", number) for number in range(count)]))
        list(pool.map(book.consumed, [("a", number) for number in range(count)]))
    book.close()
    verdict = judge(db, ledger)
    assert verdict.holds
    assert verdict.produced == verdict.consumed == count


def test_a_write_that_fails_is_not_forgotten(db, ledger, book, monkeypatch):
    """Rows that could not be written are written with the final report."""
    book.produced(ITEMS[0])
    with monkeypatch.context() as patch:
        patch.setattr(books, "write_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            book.write()
    book.close()
    verdict = judge(db, ledger)
    assert (verdict.produced, verdict.lost) == (1, 1)


NAMES = st.tuples(st.sampled_from(["a", "aa", "b"]), st.integers(0, 300))


@given(st.sets(NAMES), st.lists(NAMES))
def test_merging_is_counting(produced, consumed):
    """Both sides in the order of their keys: by process, then by number."""
    deliveries = Counter(consumed)
    expected = {item: (item in produced, deliveries[item]) for item in produced | set(consumed)}
    found = merged(iter(sorted(produced)), iter(sorted(consumed)))
    assert {item: (made, times) for item, made, times in found} == expected


@pytest.fixture
def run(engine, tmp_path):
    """A run of its own; in memory nothing of it can be opened again, so it is not erased."""
    url = url_of(engine, tmp_path / "data")
    made = Run(url, os.urandom(8).hex(), Threads())
    yield made
    made.db.close()
    erase(url, made.space)


def test_the_end_of_a_run_drains_every_queue(run):
    """It drains tasks that a worker holds, too."""
    db = run.db
    queues = run.queues
    for queue in (queues.plain, *queues.of_tasks):
        for _ in range(3):
            item = run.new_item()
            options = {} if queue in (queues.plain, queues.mixed) else {"key": 1}
            (queue.enqueue if queue is queues.plain else queue.put)(db, {"item": list(item)}, **options)
            run.book.produced(item)
    queues.mixed.take(db, 0)
    verdict = settle(run)
    assert verdict.holds
    assert verdict.consumed == 12


def test_a_task_is_done_and_noted_or_neither(run):
    """A lease that is over can note nothing."""
    db = run.db
    queue = run.queues.mixed
    queue.put(db, {"item": list(run.new_item())})
    task = queue.take(db, 0)
    queue.release(db, task)
    with pytest.raises(fdbqueue.FdbQueueError):
        complete(run, queue, [task])
    assert not list(run.ledger.consumed_items(db))


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_a_run_leaves_nothing_behind(engine, tmp_path):
    """The final reports, the sessions and the receipts of its workers are removed."""
    url = url_of(engine, tmp_path / "data")
    run_id = os.urandom(8).hex()
    worker, master = (Run(url, run_id, Threads()) for _ in range(2))
    worker.queues.mixed.put(worker.db, {"item": list(worker.new_item())})
    worker.queues.mixed.ack(worker.db, worker.queues.mixed.take(worker.db, 0))
    worker.leave()
    assert master.ledger.open_books(master.db) == [master.process]
    master.db.close()
    erase(url, master.space)
    with fdbqueue.open(url) as db:
        assert not list(db.get_range_startswith(master.space.key()))


def test_a_finding_of_the_verification_fails_the_verdict() -> None:
    """Lost or not, a queue with contradictory keys is broken."""
    sound = books.Verdict(produced=1, consumed=1)
    assert sound.holds
    broken = books.Verdict(produced=1, consumed=1, findings=["a timer names no task"])
    assert not broken.holds
    assert "a timer names no task" in str(broken)
