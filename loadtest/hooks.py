"""The steps around a test run: open the database, close the books, reach the verdict.

    test_start      the master (or the only process) names the run; every process opens the database and its
                    book in the ledger
    test_stop       every process waits for its calls and closes its book; then the master, which waits for
                    all books, drains the queues and compares the produced items with the deliveries
    quitting        a run that was interrupted is ended as any other

A verdict that does not hold, or that was never reached, makes the exit status of the master, or of the only
process, 1.
"""

import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import gevent
import locust
from gevent import monkey
from gevent.lock import BoundedSemaphore
from locust import runners
from locust.env import Environment
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

import fdbqueue
from fdbqueue.core import binding
from fdbqueue.core.database import require_answer
from fdbqueue.core.observing import Counters
from fdbqueue.core.open import url_from_environment
from loadtest import termination
from loadtest.ledger import Verdict
from loadtest.options import plots_of
from loadtest.plots import NotDrawn, draw
from loadtest.run import Run, begin, end, erase, settle
from loadtest.samples import Sample, sample_of, together
from loadtest.threads import Threads

# A process that has not closed its book by then counts as dead.
BOOKS_CLOSED_S = 30.0
# Locust ends a run once its last worker has sent no heartbeat for 3 s. A loaded machine stops it for longer.
HEARTBEATS_MISSED_MAX = 30
ANSWER_S = 10.0
SAMPLE_EVERY_S = 1.0
_COUNTERS, _FINISH, _FINISHED = "fdbqueue-counters", "fdbqueue-finish", "fdbqueue-finished"


def install() -> None:
    # All that Locust's own code needs of gevent's patching. The library has the real sleep already; the loop
    # collects the workers that --processes forks, and only its own waitpid knows how they ended.
    monkey.patch_time()
    monkey.patch_os()
    termination.install()
    binding.for_this_program()
    runners.HEARTBEAT_LIVENESS = HEARTBEATS_MISSED_MAX
    locust.events.init.add_listener(on_init)


def on_init(environment: Environment, **_: object) -> None:
    """See whether the database can be opened; if not, end with one line and status 2."""
    parsed = environment.parsed_options
    assert parsed is not None
    if parsed.url == "memory:" and isinstance(environment.runner, MasterRunner | WorkerRunner):
        _refuse("memory: belongs to one process; a master and its workers need embedded:PATH or fdb:")
    try:
        with fdbqueue.open(parsed.url) as db:
            require_answer(db, parsed.url or url_from_environment(), ANSWER_S)
    except fdbqueue.FdbQueueError as error:
        _refuse(str(error))
    Load(environment).install()


def _refuse(reason: str) -> None:
    print(f"loadtest: {reason}", file=sys.stderr)
    sys.exit(2)


class Load:
    """One process of the load test, over all its runs."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._threads = Threads()
        self._own = Counters()
        self._workers: dict[str, Counters] = {}
        self._run_id = ""
        self._finished: set[str] = set()
        self._samples: list[Sample] = []
        self._sampler: gevent.Greenlet | None = None
        self._verdict: Verdict | None = None
        self._failed = False
        self._stopping = BoundedSemaphore()

    def install(self) -> None:
        events = self._environment.events
        events.test_start.add_listener(self._on_test_start)
        events.test_stop.add_listener(self._on_test_stop)
        events.quitting.add_listener(self._on_quitting)
        events.report_to_master.add_listener(self._on_report_to_master)
        events.worker_report.add_listener(self._on_worker_report)
        runner = self._environment.runner
        if isinstance(runner, MasterRunner):
            runner.register_message(_COUNTERS, self._on_last_report)
            runner.register_message(_FINISHED, self._on_finished)
        if isinstance(runner, WorkerRunner):
            runner.register_message(_FINISH, self._on_finish)
        elif runner is not None and self._environment.web_ui is None:
            # Locust's own handler comes only when a run without the web UI is over.
            gevent.signal_handler(signal.SIGTERM, runner.quit)
        web_ui = self._environment.web_ui
        if web_ui is not None and web_ui.app is not None:
            web_ui.app.route("/fdbqueue")(self.status)

    def status(self) -> dict[str, Any]:
        """The counters that the web UI shows at /fdbqueue, in JSON."""
        verdict = None if self._verdict is None else asdict(self._verdict) | {"holds": self._verdict.holds}
        return {"counters": asdict(self.counters()), "verdict": verdict}

    def counters(self) -> Counters:
        """Of the run, and of all workers, as far as they have reported."""
        return together([self._own, *self._workers.values()])

    @property
    def _is_worker(self) -> bool:
        return isinstance(self._environment.runner, WorkerRunner)

    # A run.

    def _on_test_start(self, **_: object) -> None:
        parsed = self._environment.parsed_options
        assert parsed is not None
        if not self._is_worker:
            parsed.run_id = fdbqueue.RealRuntime.random_bytes(8).hex()
            self._verdict, self._environment.process_exit_code = None, 1  # until it has been judged
        self._run_id = parsed.run_id
        run = self._threads.run(lambda: Run(parsed.url, parsed.run_id, self._threads))
        self._own, self._workers, self._samples = run.db.counters, {}, []
        self._finished = set()
        begin(self._environment, run)
        if not self._is_worker:
            self._sampler = gevent.spawn(self._sample)

    def _sample(self) -> None:
        started = time.monotonic()
        while True:
            self._samples.append(sample_of(self._environment, time.monotonic() - started, self.counters()))
            gevent.sleep(SAMPLE_EVERY_S)

    def _on_test_stop(self, **_: object) -> None:
        # An interrupted Locust stops twice at the same time; the second waits, and finds nothing to do.
        with self._stopping:
            run = end(self._environment)
            if run is not None:
                self._finish(run)

    def _finish(self, run: Run) -> None:
        if self._sampler is not None:
            self._sampler.kill()
        runner = self._environment.runner
        if isinstance(runner, MasterRunner):
            # Without the web UI, Locust's master tells its workers to stop only after this.
            runner.send_message(_FINISH, {"run_id": self._run_id})
        self._threads.join()
        if isinstance(runner, WorkerRunner):
            runner.send_message(_COUNTERS, asdict(self.counters()))
            self._threads.run(run.leave)
        else:
            self._threads.run(run.book.close)
            self._conclude(run)

    def _conclude(self, run: Run) -> None:
        self._await_books(run)
        counters = self.counters()
        self._verdict = self._threads.run(lambda: settle(run))
        self._tell(self._verdict, counters)
        self._threads.run(run.db.close)
        self._threads.run(lambda: erase(run.url, run.space))

    def _await_books(self, run: Run) -> None:
        until = time.monotonic() + BOOKS_CLOSED_S
        while self._may_be_written(run) and time.monotonic() < until:
            gevent.sleep(0.2)

    def _may_be_written(self, run: Run) -> bool:
        """True if a worker has a book open, or may still open one: a slow start may outlast the run."""
        runner = self._environment.runner
        clients = runner.clients.all if isinstance(runner, MasterRunner) else []
        alive = {client.id for client in clients if client.state != STATE_MISSING}
        return bool(alive - self._finished or self._threads.run(lambda: run.ledger.open_books(run.db)))

    def _tell(self, verdict: Verdict, counters: Counters) -> None:
        self._failed |= not verdict.holds
        # None: as Locust decides, by the requests that failed.
        self._environment.process_exit_code = 1 if self._failed else None
        print(f"verdict: {'ok' if verdict.holds else 'FAILED'}: {verdict}", file=sys.stderr)
        print(", ".join(f"{value:,} {name}" for name, value in asdict(counters).items()), file=sys.stderr)
        assert self._environment.parsed_options is not None
        folder = plots_of(self._environment.parsed_options)
        if folder is not None:
            self._draw(folder)

    def _draw(self, folder: Path) -> None:
        try:
            told = ", ".join(map(str, draw(self._samples, folder)))
        except NotDrawn as error:
            told = f"none: {error}"
        print(f"plots: {told}", file=sys.stderr)

    def _on_quitting(self, **_: object) -> None:
        if self._environment.runner is not None:
            self._environment.runner.stop()  # interrupted: this is what calls test_stop
        if self._environment.process_exit_code and self._verdict is None:
            print("verdict: none: the run was not judged", file=sys.stderr)

    # Counters of other processes.

    def _on_report_to_master(self, data: dict[str, Any], **_: object) -> None:
        data["fdbqueue"] = asdict(self.counters())

    def _on_worker_report(self, client_id: str, data: dict[str, Any], **_: object) -> None:
        # Absent from the reports of a worker before it has opened the database.
        self._workers[client_id] = Counters(**data.get("fdbqueue", {}))

    def _on_finish(self, msg: Any, **_: object) -> None:
        """Messages of the master come in order: a start that was under way is over."""
        runner = self._environment.runner
        assert isinstance(runner, WorkerRunner)
        runner.stop()
        runner.send_message(_FINISHED, msg.data)

    def _on_finished(self, msg: Any, **_: object) -> None:
        if msg.data == {"run_id": self._run_id}:
            self._finished.add(msg.node_id)

    def _on_last_report(self, msg: Any, **_: object) -> None:
        self._workers[msg.node_id] = Counters(**msg.data)
