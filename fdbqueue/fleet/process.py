"""A worker process, from the side of the supervisor: start it, read its reports, signal it, kill it."""

import os
import signal
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

import msgspec

from fdbqueue.core.logger import logger
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.status import AtWork, Orders, Report, Running, Tally, named, report_of, to_line

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
