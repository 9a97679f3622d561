"""Fleet: worker processes, started, watched, started again, recycled and stopped.

Processes are started afresh (no fork of a program with threads) in sessions of their own, so that a key on
the terminal is heard by the supervisor alone, which passes it on. Each ends by itself when the supervisor is
gone: it holds the other end of their lifeline.
"""

import logging
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from fdbqueue import limits
from fdbqueue.database import require_answer
from fdbqueue.errors import DatabaseNotFound, FleetRefused, InvalidArgument
from fdbqueue.fleet.backoff import Backoff
from fdbqueue.fleet.orders import Orders, Report, report_of, to_line
from fdbqueue.fleet.status import Running, Tally
from fdbqueue.fleet.worker import Worker, weights_of
from fdbqueue.open import open as open_database
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.runtime import RealRuntime
from fdbqueue.tasks.kinds import checked_whole, is_number

TICK_S = 0.1
READ_BYTES = 65_536
RESTART = Backoff(first_s=0.2, growth=2.0, cap_s=30.0)
# One that lived so long, or has been at a task, has not failed at its start.
SETTLED_S = 30.0
CONNECT_TIMEOUT_S = 10.0
KILL_AFTER_S = 10.0
# It finds its modules where we find ours.
BOOT = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from fdbqueue.fleet.child import main; sys.exit(main(sys.argv[1:3]))"
)
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# What a process is sent, one after the other: two of the same that are pending together are one.
STOPS = (signal.SIGTERM, signal.SIGINT)

_log = logging.getLogger("fdbqueue.fleet")


@dataclass(frozen=True)
class ProcessStatus:
    """One worker process. `silent_s`: so long it has not reported, which it does twice a second."""

    process_id: int
    state: str
    """"starting", "working", "retiring", "stopping", "ended", "dead"."""
    tally: Tally
    running: tuple[Running, ...]
    rss_bytes: int
    silent_s: float


@dataclass(frozen=True)
class FleetStatus:
    processes: tuple[ProcessStatus, ...]
    tally: Tally
    """Of all processes there have been."""
    restarts: int
    """How many processes died."""
    recycled: int

    @property
    def running(self) -> tuple[Running, ...]:
        return tuple(task for process in self.processes for task in process.running)


class Process:
    """One worker process, from its start to its end."""

    def __init__(self, orders: Orders) -> None:
        their_lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        self._reports, their_reports = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reports, False)
        command = [sys.executable, "-c", BOOT, str(their_lifeline), str(their_reports), *sys.path]
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(their_lifeline, their_reports),
            start_new_session=True,
        )
        os.close(their_lifeline)
        os.close(their_reports)
        os.write(self._lifeline, to_line(orders))
        self._unread = b""
        self._signalled = 0
        self.report = Report("starting")
        self.started_at = self.heard_at = RealRuntime.monotonic()

    @property
    def id(self) -> int:
        return self._popen.pid

    def fileno(self) -> int:
        return self._reports

    def listen(self) -> None:
        """Read what it has reported."""
        try:
            while more := os.read(self._reports, READ_BYTES):
                *lines, self._unread = (self._unread + more).split(b"\n")
                for line in lines:
                    self.report, self.heard_at = report_of(line), RealRuntime.monotonic()
        except BlockingIOError:
            return

    def exit_status(self) -> int | None:
        """None while it lives."""
        return self._popen.poll()

    def stop(self, times: int) -> None:
        """Let it have had so many signals."""
        while self._signalled < times and self._popen.poll() is None:
            self._popen.send_signal(STOPS[self._signalled])
            self._signalled += 1

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def close(self) -> None:
        os.close(self._lifeline)
        os.close(self._reports)

    def status(self, now: float) -> ProcessStatus:
        report = self.report
        return ProcessStatus(
            self.id, report.state, report.tally, report.running, report.rss_bytes, now - self.heard_at
        )


class Fleet:
    """`processes` worker processes, each a Worker with these options, working on the database at `url`."""

    def __init__(
        self,
        url: str,
        queues: str | list[str] | Mapping[str, int],
        handler: str,
        *,
        processes: int = 2,
        threads: int = 8,
        transactional: bool = False,
        max_attempts: int | None = 5,
        backoff: Backoff = Backoff(),  # noqa: B008  # a value
        timeout_s: float | None = None,
        grace_s: float = 30.0,
        session_ttr_s: float = limits.SESSION_TTR_S,
        until_empty: bool = False,
        recycle_tasks: int | None = None,
        recycle_mb: float | None = None,
        hooks: str | None = None,
        argument: Any = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """`handler` and `hooks` are "module:name", imported by each process. With an `argument`, which JSON
        must be able to carry, what `handler` names is called with it and returns the handler.
        `recycle_tasks`, `recycle_mb`: a process that has ended so many attempts, or grown to so many
        megabytes, is replaced; so is one with a thread that a handler has kept beyond `timeout_s`.

        Raises InvalidArgument, QueueNotFound, DatabaseNotFound, what opening the database raises; starts
        and takes nothing.
        """
        self._processes_wanted = checked_whole("processes", processes, 1, limits.PROCESSES_MAX)
        if recycle_tasks is not None:
            checked_whole("recycle_tasks", recycle_tasks, 1, 2**62)
        if recycle_mb is not None and (not is_number(recycle_mb) or recycle_mb <= 0):
            raise InvalidArgument(name="recycle_mb", wanted="megabytes", got=recycle_mb)
        self._orders = Orders(
            url,
            root.key().hex(),
            weights_of(queues),
            handler,
            threads,
            transactional,
            max_attempts,
            backoff,
            timeout_s,
            grace_s,
            session_ttr_s,
            until_empty,
            recycle_tasks,
            recycle_mb,
            hooks,
            argument,
        )
        self._require_all(root)
        self._monotonic = RealRuntime.monotonic
        self._members: list[Process] = []
        self._retiring: list[Process] = []
        self._start_at: list[float] = []
        self._deaths_in_a_row = 0
        self._stops = 0
        self._stop_asked_at: float | None = None
        self._past = Tally()
        self._restarts = self._recycled = 0
        self._refusal = ""
        self._emptied = False

    def run(self, on_tick: Callable[[FleetStatus], object] | None = None) -> None:
        """Work until stopped, or, `until_empty`, until nothing is left. `on_tick` is called with the status
        several times a second.

        SIGTERM, SIGINT and SIGHUP call `stop` meanwhile, if this is the main thread; the second one
        stops at once. Raises FleetRefused if the processes do not start: handlers that cannot be imported.
        """
        with self._signals():
            try:
                self._start_at = [self._monotonic()] * self._processes_wanted
                while self._start_at or self._members or self._retiring:
                    self._tick()
                    if on_tick is not None:
                        on_tick(self.status())
            finally:
                self._leave_nobody()
        if self._refusal:
            raise FleetRefused(reason=self._refusal)

    def stop(self, *, at_once: bool = False) -> None:
        """Have every process take no more, and end within its grace, or `at_once`. Returns at once, and may
        be called from a signal handler.
        """
        self._stops = max(self._stops, 2 if at_once else 1)

    def status(self) -> FleetStatus:
        now = self._monotonic()
        everyone = tuple(process.status(now) for process in (*self._members, *self._retiring))
        tally = sum((process.tally for process in everyone), self._past)
        return FleetStatus(everyone, tally, self._restarts, self._recycled)

    # One round.

    def _tick(self) -> None:
        self._start_due()
        self._listen()
        self._pass_on_stops()
        for process in [*self._members, *self._retiring]:
            self._look_at(process)

    def _start_due(self) -> None:
        if self._stops or self._emptied:
            self._start_at = []
        now = self._monotonic()
        for at in [at for at in self._start_at if at <= now]:
            self._start_at.remove(at)
            self._members.append(Process(self._orders))

    def _listen(self) -> None:
        everyone = [*self._members, *self._retiring]
        heard, _, _ = select.select(everyone, [], [], TICK_S)
        for process in heard:
            process.listen()
        if heard:
            # They report often, and one whose end is closed is ready at once, again and again.
            RealRuntime.sleep(TICK_S / 5)

    def _pass_on_stops(self) -> None:
        if not self._stops:
            return
        now = self._monotonic()
        self._stop_asked_at = self._stop_asked_at or now
        grace_s = 0.0 if self._stops > 1 else self._orders.grace_s
        for process in [*self._members, *self._retiring]:
            process.stop(self._stops)
            if now > self._stop_asked_at + grace_s + KILL_AFTER_S:
                _log.error("process %d does not end and is killed", process.id)
                process.kill()

    def _look_at(self, process: Process) -> None:
        status = process.exit_status()
        if status is not None:
            process.listen()
            self._bury(process, status)
        elif process.report.state == "retiring" and process in self._members:
            self._members.remove(process)
            self._retiring.append(process)
            self._recycled += 1
            self._start_at.append(self._monotonic())

    def _bury(self, process: Process, status: int) -> None:
        """A process has ended, and this is what follows."""
        self._past = self._past + process.report.tally
        was_member = process in self._members
        (self._members if was_member else self._retiring).remove(process)
        process.close()
        if process.report.state == "refused":
            self._refuse(process.report.reason)
        elif status == 0 and process.report.emptied:
            self._emptied = True
        elif was_member and process.report.retired and not self._stops:
            self._recycled += 1
            self._start_at.append(self._monotonic())
        elif was_member and not self._stops:
            self._replace(process, status)

    def _refuse(self, reason: str) -> None:
        """Something that no process can start with, or go on with."""
        self._refusal = self._refusal or reason
        self.stop()

    def _replace(self, process: Process, status: int) -> None:
        self._restarts += 1
        worked = process.report.tally.ended > 0
        settled = worked or self._monotonic() - process.started_at > SETTLED_S
        self._deaths_in_a_row = 1 if settled else self._deaths_in_a_row + 1
        delay_s = RESTART.delay_s(self._deaths_in_a_row, RealRuntime.random())
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        _log.error("process %d ended %s; another starts in %.1f s", process.id, how, delay_s)
        self._start_at.append(self._monotonic() + delay_s)

    # Beginning and end.

    def _require_all(self, root: Any) -> None:
        """Raises what would keep every process from working, before there is one."""
        url = self._orders.url
        scheme, _, path = url.partition(":")
        if url == "memory:":
            raise InvalidArgument(name="url", wanted="a database that several processes share", got=url)
        if scheme == "embedded" and not os.path.isdir(path):
            raise DatabaseNotFound(url=url)
        with open_database(url) as database:
            require_answer(database, url, CONNECT_TIMEOUT_S)
            Worker(
                database,
                self._orders.queues,
                print,
                threads=self._orders.threads,
                max_attempts=self._orders.max_attempts,
                timeout_s=self._orders.timeout_s,
                grace_s=self._orders.grace_s,
                session_ttr_s=self._orders.session_ttr_s,
                root=root,
            )

    @contextmanager
    def _signals(self) -> Iterator[None]:
        before: dict[int, Any] = {}
        try:
            for number in SIGNALS:
                # One that is ignored stays so: that is how nohup works.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    before[number] = signal.signal(number, self._signalled)
        except ValueError:  # not the main thread: signals are somebody else's affair
            before.clear()
        try:
            yield
        finally:
            for known, handler in before.items():
                signal.signal(known, handler)

    def _signalled(self, _: int, __: FrameType | None) -> None:
        self.stop(at_once=self._stops > 0)

    def _leave_nobody(self) -> None:
        """However `run` ends: no process is left."""
        for process in [*self._members, *self._retiring]:
            process.kill()
            process.close()
        self._members, self._retiring, self._start_at = [], [], []
