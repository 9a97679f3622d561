"""Fleet: the supervisor that starts, watches, replaces and stops worker processes.

A process is started afresh, as a fork of a program with threads is not safe. It has an own session of the
operating system, so Ctrl-C reaches the supervisor only, which passes it on. A process ends by itself when
the supervisor dies: then the pipe between them, its lifeline, is closed.
"""

import os
import select
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Unpack

import msgspec

from fdbqueue.core import limits, signals
from fdbqueue.core.arguments import (
    checked_count,
    checked_function,
    checked_positive,
    checked_prefix,
    checked_text,
    checked_whole,
)
from fdbqueue.core.database import Handle, public_url, require_answer
from fdbqueue.core.errors import DatabaseNotFound, FleetRefused, InvalidArgument
from fdbqueue.core.logger import logger
from fdbqueue.core.open import DIRECTORY_SCHEMES, place_of
from fdbqueue.core.open import open as open_database
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import RealRuntime, parent_only
from fdbqueue.core.visible import counted, text_of
from fdbqueue.fleet.around import checked_target
from fdbqueue.fleet.logs import checked_level, checked_paths
from fdbqueue.fleet.options import WorkerKeywords, WorkerOptions, names_of, opened
from fdbqueue.fleet.outcomes import Backoff
from fdbqueue.fleet.status import (
    KILL_AFTER_S,
    AtWork,
    Orders,
    Report,
    Run,
    Running,
    Tally,
    checked_argument,
    named,
    report_of,
    to_line,
)

# A worker process, from the side of the supervisor: start it, read its reports, signal it, kill it.

READ_BYTES = 65_536
_log = logger("fdbqueue.fleet")


def _standard_paths() -> list[str]:
    roots = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return sorted(roots | {f"{root}/lib-dynload" for root in roots})


# The process finds its modules on the paths of this one. This one may have got a path in front after it had
# imported the standard library: a file logging.py there must not hide the module of that name from ours.
BOOT = (
    f"import sys; sys.path[:] = sorted(sys.argv[4:], key=lambda path: path not in {_standard_paths()!r}); "
    "from fdbqueue.fleet.child import main; "
    "sys.path[:] = sys.argv[4:]; sys.exit(main(sys.argv[1:4]))"
)
# The first and the second signal to stop a process. They differ, as two equal pending signals arrive as one.
STOPS = (signal.SIGTERM, signal.SIGINT)


kept_from_children: set[int] = set()
"""Descriptors whose end tells another process that this one has died. A forked child would hold it back."""


def _after_fork_in_child() -> None:
    while kept_from_children:
        os.close(kept_from_children.pop())


os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True)
class ProcessStatus:
    """One worker process. `silent_s`: seconds since its last report; reports come twice a second."""

    process_id: int
    state: str
    """"starting", "working", "retiring", "stopping", "ended", "dead"."""
    tally: Tally
    running: tuple[Running, ...]
    rss_bytes: int
    silent_s: float


class Process:
    """One worker process, from its start to its end."""

    def __init__(self, orders: Orders, stdout: int | None) -> None:
        line = to_line(orders)
        their_lifeline, self._lifeline = os.pipe2(os.O_CLOEXEC)
        kept_from_children.add(self._lifeline)
        self._reports, their_reports = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reports, False)
        self._at_work = AtWork.create(orders.options.places)
        theirs = (their_lifeline, their_reports, self._at_work.descriptor)
        command = [sys.executable, "-c", BOOT, *map(str, theirs), *sys.path]
        self._popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stdout, pass_fds=theirs, start_new_session=True
        )
        os.close(their_lifeline)
        os.close(their_reports)
        self._unread = b""
        self._signalled = 0
        self.report = Report("starting")
        self.started_at = self.heard_at = RealRuntime.monotonic()
        self._give(line)

    def _give(self, line: bytes) -> None:
        """Write the orders. If that is interrupted, kill the process: it would wait for the rest."""
        try:
            # A signal ends a write of a long line early.
            while line:
                line = line[os.write(self._lifeline, line) :]
        except BrokenPipeError:
            return  # the process died: its exit status says how
        except BaseException:
            self.kill()
            self.close()
            raise

    @property
    def id(self) -> int:
        return self._popen.pid

    def fileno(self) -> int:
        return self._reports

    def listen(self) -> None:
        try:
            while more := os.read(self._reports, READ_BYTES):
                *lines, self._unread = (self._unread + more).split(b"\n")
                for line in lines:
                    self._hear(line)
        except BlockingIOError:
            return

    def _hear(self, line: bytes) -> None:
        try:
            self.report, self.heard_at = report_of(line), RealRuntime.monotonic()
        except msgspec.DecodeError as error:  # a handler may write to any descriptor of its process
            _log.warning("process %d sent a report that cannot be read: %s", self.id, error)

    def exit_status(self) -> int | None:
        return self._popen.poll()

    def stop(self, times: int) -> None:
        """Send signals until the process has received `times` of them."""
        while self._signalled < times and self._popen.poll() is None:
            self._popen.send_signal(STOPS[self._signalled])
            self._signalled += 1

    def kill(self) -> None:
        self._popen.kill()
        self._popen.wait()

    def close(self) -> None:
        kept_from_children.discard(self._lifeline)
        os.close(self._lifeline)
        os.close(self._reports)
        self._at_work.close()

    def at_work(self) -> int:
        return len(self._at_work.tasks())

    def ending(self, status: int) -> str:
        signalled = f"by signal {-status} ({signal.Signals(-status).name})" if status < 0 else ""
        tasks = named(self._at_work.tasks())
        how = signalled or f"with status {status}"
        return f"process {self.id} ended {how}" + (f" while at {tasks}" if tasks else "")

    def status(self, now: float) -> ProcessStatus:
        report = self.report
        return ProcessStatus(
            self.id, report.state, report.tally, report.running, report.rss_bytes, now - self.heard_at
        )


TICK_S = 0.1
RESTART = Backoff(first_s=0.2, growth=2.0, cap_s=30.0)
# A process that has run for this time, or has ended an attempt, did not fail at its start.
STABLE_S = 30.0
CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class FleetStatus:
    processes: tuple[ProcessStatus, ...]
    tally: Tally
    """Counts of all processes, dead ones too: exact after `Fleet.run`, half a second old before."""
    restarts: int
    """Number of processes that died and were replaced."""
    recycled: int
    drained: int = 0
    """Number of processes that ended because they were drained, and are not replaced."""

    @property
    def running(self) -> tuple[Running, ...]:
        return tuple(task for process in self.processes for task in process.running)


class Fleet(Handle):
    """`processes` worker processes, each a Worker with the same options, on the database at `url`."""

    __slots__ = (
        "_count_at",
        "_counted",
        "_deaths_in_a_row",
        "_drained",
        "_emptied",
        "_members",
        "_monotonic",
        "_orders",
        "_processes_wanted",
        "_recycled",
        "_refusal",
        "_reported",
        "_restarts",
        "_retiring",
        "_root",
        "_start_at",
        "_stdout",
        "_stop_asked_at",
        "_stop_signal",
        "_stops",
        "_stops_passed_on",
        "_stops_told",
    )

    def __init__(
        self,
        url: str,
        queues: str | list[str] | Mapping[str, int],
        handler: str,
        *,
        processes: int = 2,
        until_empty: bool = False,
        recycle_tasks: int | None = None,
        recycle_mb: float | None = None,
        hooks: str | None = None,
        setup: str | None = None,
        teardown: str | None = None,
        argument: Any = None,
        log_level: str = "info",
        redact: Sequence[str] = (),
        stdout: int | None = None,
        root: Any = DEFAULT_ROOT,
        **options: Unpack[WorkerKeywords],
    ) -> None:
        """Check the options; start nothing yet. WorkerOptions documents the `options`.

        `handler`, `hooks`, `setup` and `teardown` are "module:name", which each process imports. With an
        `argument`, a value that JSON can carry, `handler` names a function of it that returns the handler.

        A process is replaced after `recycle_tasks` attempts, or when it has more than `recycle_mb` megabytes,
        or when a handler has run longer than `timeout_s`, as its thread may never end.

        `log_level` is "debug", "info", "warning" or "error". The processes log to standard error, unless the
        modules of the handler configure a log. `redact`: paths of parts of tasks that it does not tell.
        `stdout` is the descriptor of their standard output.

        Raises: InvalidArgument, QueueNotFound, DatabaseNotFound, errors of `fdbqueue.open`.
        """
        self._processes_wanted = checked_count("processes", processes, limits.PROCESSES_MAX)
        if recycle_tasks is not None:
            checked_count("recycle_tasks", recycle_tasks)
        if recycle_mb is not None:
            checked_positive("recycle_mb", recycle_mb, "megabytes")
        if stdout is not None:
            checked_whole("stdout", stdout, 0, limits.OPTION_MAX)
        self._orders = Orders(
            checked_text("url", url, limits.URL_BYTES_MAX),
            checked_prefix("root", root).hex(),
            names_of(queues),
            checked_text("handler", handler, limits.URL_BYTES_MAX),
            WorkerOptions.checked(**options),
            bool(until_empty),
            recycle_tasks,
            recycle_mb,
            None if hooks is None else checked_text("hooks", hooks, limits.URL_BYTES_MAX),
            checked_argument(argument),
            checked_level(log_level),
            setup=checked_target("setup", setup),
            teardown=checked_target("teardown", teardown),
            redact=checked_paths(redact),
        )
        self._stdout, self._root = stdout, root
        self._require_all(root)
        self._begin()

    def _shown(self) -> dict[str, Any]:
        orders = self._orders
        told = {"queues": [*orders.queues], "handler": orders.handler, "processes": self._processes_wanted}
        return {**told, "url": public_url(orders.url)}

    def _begin(self) -> None:
        self._monotonic = RealRuntime.monotonic
        self._members: list[Process] = []
        self._retiring: list[Process] = []
        self._start_at: list[float] = []
        self._deaths_in_a_row = 0
        self._stops = self._stops_told = self._stops_passed_on = 0
        self._stop_signal: int | None = None
        self._stop_asked_at = 0.0
        """Time at which the last stage of a stop was passed on: each has its grace."""
        self._counted = self._reported = Tally()
        self._count_at = float("-inf")
        self._restarts = self._recycled = self._drained = 0
        self._refusal = ""
        self._emptied = False

    def run(self, on_tick: Callable[[FleetStatus], object] | None = None) -> None:
        """Work until `stop`, or with `until_empty` until the queues are empty. `on_tick` is called with the
        status several times a second.

        In the main thread, SIGTERM, SIGINT and SIGHUP call `stop`; a second signal stops at once. Raises
        DatabaseNotFound; FleetRefused if the processes do not start, as of a handler that cannot be imported,
        or cannot go on, as their directory was replaced.
        """
        if on_tick is not None:
            checked_function("on_tick", on_tick)
        with (
            self._signals(),
            open_database(self._orders.url, create=False) as database,
            Run(database, self._root) as run,
        ):
            self._orders = replace(self._orders, run=run.id.hex())
            self._work(run, on_tick)
        if self._refusal:
            raise FleetRefused(reason=self._refusal)

    def _work(self, run: Run, on_tick: Callable[[FleetStatus], object] | None) -> None:
        try:
            self._start_at = [self._monotonic()] * self._processes_wanted
            while self._start_at or self._members or self._retiring:
                self._tick()
                self._count_if_due(run)
                if on_tick is not None:
                    with parent_only(RealRuntime()):
                        on_tick(self.status())
        finally:
            self._leave_nobody()
        self._count_finally(run)

    def stop(self, *, at_once: bool = False) -> None:
        """Make each process take no more tasks, and end within `grace_s`, or `at_once`.

        Returns at once. A signal handler may call it.
        """
        # No call is between the look and the change: another signal could arrive there.
        if at_once:
            self._stops = 2
        elif not self._stops:
            self._stops = 1

    def status(self) -> FleetStatus:
        now = self._monotonic()
        everyone = tuple(process.status(now) for process in (*self._members, *self._retiring))
        return FleetStatus(everyone, self._counted, self._restarts, self._recycled, self._drained)

    # One round.

    def _tick(self) -> None:
        self._start_due()
        self._listen()
        self._pass_on_stops()
        for process in [*self._members, *self._retiring]:
            status = process.exit_status()
            if status is not None:
                process.listen()
                self._bury(process, status)
            elif process.report.state == "retiring" and process in self._members:
                self._members.remove(process)
                self._retiring.append(process)
                self._recycled += 1
                self._start_at.append(self._monotonic())

    def _start_due(self) -> None:
        if self._stops or self._emptied:
            self._start_at = []
        now = self._monotonic()
        for at in [at for at in self._start_at if at <= now]:
            self._start_at.remove(at)
            try:
                self._members.append(Process(self._orders, self._stdout))
            except OSError as error:  # no process, descriptor or memory is free: the running processes go on
                self._deaths_in_a_row += 1
                delay_s = RESTART.delay_s(self._deaths_in_a_row, RealRuntime.random())
                _log.error("no process can be started; the next try is in %.1f s: %s", delay_s, error)
                self._start_at.append(self._monotonic() + delay_s)

    def _listen(self) -> None:
        everyone = [*self._members, *self._retiring]
        heard, _, _ = select.select(everyone, [], [], TICK_S)
        for process in heard:
            process.listen()
        if heard:
            # Without a sleep, a pipe that is closed would be ready again at once, and this loop would spin.
            RealRuntime.sleep(TICK_S / 5)

    def _pass_on_stops(self) -> None:
        stops, now = self._stops, self._monotonic()  # a signal may raise the number at any moment
        if not stops:
            return
        if stops > self._stops_passed_on:
            self._stops_passed_on, self._stop_asked_at = stops, now
        self._tell_stops()
        grace_s = 0.0 if stops > 1 else self._orders.options.grace_s
        for process in [*self._members, *self._retiring]:
            process.stop(stops)
            if now > self._stop_asked_at + grace_s + KILL_AFTER_S:
                _log.error("process %d does not end and is killed", process.id)
                process.kill()

    def _tell_stops(self) -> None:
        """Log each stage of a stop once, unless a refusal causes it: its error tells why. A signal handler
        must not log, as it may interrupt a log handler.
        """
        stops = self._stops
        if stops == self._stops_told or self._refusal:
            return
        self._stops_told = stops
        why = signal.Signals(self._stop_signal).name if self._stop_signal else "stop"
        everyone = (*self._members, *self._retiring)
        running = sum(process.at_work() for process in everyone)
        if stops > 1:
            _log.warning("%s: ending at once, and giving back %s", why, counted(running, "running task"))
        else:
            _log.info(
                "%s: taking no more; %s may end within %g s, a second signal ends them at once",
                why,
                counted(running, "running task"),
                self._orders.options.grace_s,
            )

    def _bury(self, process: Process, status: int) -> None:
        self._reported = self._reported + process.report.tally
        was_member = process in self._members
        (self._members if was_member else self._retiring).remove(process)
        ending = process.ending(status)
        process.close()
        if process.report.state == "refused":
            self._refusal = self._refusal or process.report.reason
            self.stop()
        elif process.report.drained:
            self._end_drained(process, ending, status)
        elif status == 0 and process.report.emptied:
            self._emptied = True
        elif was_member and process.report.retired and not self._stops:
            self._recycled += 1
            self._start_at.append(self._monotonic())
        elif was_member and not self._stops:
            self._replace(process, ending)
        elif status and not self._refusal:  # that tells why all processes end
            _log.error("%s", ending)

    def _end_drained(self, process: Process, ending: str, status: int) -> None:
        self._drained += 1
        if status:
            _log.error("%s while it was drained", ending)
        else:
            _log.info("process %d was drained, and is not replaced", process.id)

    # The counts.

    def _count_if_due(self, run: Run) -> None:
        now = self._monotonic()
        if now < self._count_at:
            return
        try:
            self._counted = run.tally(limits.RUN_READ_TIMEOUT_S) or self._counted
            self._count_at = now + limits.RUN_READ_EVERY_S
        except Exception:  # read again later; the last read, at the end, reports its error
            self._count_at = now + limits.RUN_READ_AGAIN_S

    def _count_finally(self, run: Run) -> None:
        try:
            counted = run.tally(limits.CLOSE_TIMEOUT_S)
            reason = "the session of the run was lost"
        except Exception as error:
            counted, reason = None, text_of(error)
        if counted is None and not self._refusal:
            _log.warning("the counts are not exact, but those that the processes reported: %s", reason)
        self._counted = self._reported if counted is None else counted

    def _replace(self, process: Process, ending: str) -> None:
        self._restarts += 1
        worked = process.report.tally.ended > 0
        stable = worked or self._monotonic() - process.started_at > STABLE_S
        self._deaths_in_a_row = 1 if stable else self._deaths_in_a_row + 1
        delay_s = RESTART.delay_s(self._deaths_in_a_row, RealRuntime.random())
        _log.error("%s; another starts in %.1f s", ending, delay_s)
        self._start_at.append(self._monotonic() + delay_s)

    # Beginning and end.

    def _require_all(self, root: Any) -> None:
        """Raise the errors that would end each process, before the first one starts."""
        url = self._orders.url
        scheme = url.partition(":")[0]
        if url == "memory:":
            raise InvalidArgument(name="url", wanted="a database that several processes share", got=url)
        if scheme in DIRECTORY_SCHEMES and not os.path.isdir(place_of(url)[0]):
            raise DatabaseNotFound(url=url)
        with open_database(url) as database:
            require_answer(database, url, CONNECT_TIMEOUT_S)
            opened(database, self._orders.queues, root)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        with ExitStack() as stack:
            with suppress(ValueError):  # not the main thread: the program handles signals itself
                stack.callback(signals.install(signals.heard(), self._signalled))
                stack.callback(signals.hear_of_children())
            yield

    def _signalled(self, number: int, _: FrameType | None) -> None:
        # No call is between these steps: a second signal could arrive there.
        self._stop_signal = number
        self._stops = 2 if self._stops else 1

    def _leave_nobody(self) -> None:
        """Kill the processes that are left, also if `run` raises."""
        for process in [*self._members, *self._retiring]:
            process.kill()
            process.close()
        self._members, self._retiring, self._start_at = [], [], []
