"""`fdbqueue work --exec`: the handler that runs a command for each task, without a shell.

The data of the task replaces {} inside each argument, and is the standard input of the command. Exit status 0
acks the task. Any other status fails the attempt; the output is kept with the failure.

If the task was put with a `result_ttl`, the output is its result.

The output of a command that succeeds goes to our standard output. If that is a pipe, the outputs of tasks
follow one another, and a task is acked when its output was read. With --into, each line of output goes into
a queue instead, in the transaction of the ack, so exactly once.

With --batch, a command has several tasks, each a line of JSON on its standard input. Exit status 0 acks all.

A command is killed when its lease ends, when its task is cancelled, or when its worker dies; that of a batch,
when this is true of all tasks.
"""

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO, Any

import click
import msgspec
from fdb.subspace_impl import Subspace

from fdbqueue.core import limits
from fdbqueue.core.errors import PayloadTooLarge, TooMuchForOneTransaction
from fdbqueue.core.registry import PLAIN, Registry
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.task import Task
from fdbqueue.core.visible import value_of
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.logs import ERASE_LINE
from fdbqueue.fleet.outcomes import Bury, Done, Retry, Unavailable
from fdbqueue.fleet.supervisor import kept_from_children
from fdbqueue.operate.cli.exits import LineWriter, ReaderGone
from fdbqueue.operate.cli.show import task_row
from fdbqueue.operate.cli.wording import line_of
from fdbqueue.queues.recipe.queue import Queue
from fdbqueue.tasks.queue import TaskQueue

PLACEHOLDER = "{}"
OUTPUT_MOST = f"{limits.BATCH_ITEMS_MAX:,} lines of {limits.BATCH_BYTES_MAX:,} bytes"
"""The bound of an output whose lines are put in one transaction, for messages."""
LOOK_EVERY_S = 0.5
STDOUT, STDERR = 1, 2
PIECE_BYTES = 65_536
# The machine has run out of processes, memory, descriptors, or room for the output.
EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})


class Command(msgspec.Struct, frozen=True):
    """The words of a command, and the queue for its output; without a queue, our standard output."""

    words: list[str]
    into: str | None = None
    root: bytes = b""


def make(argument: Any) -> "Execute":
    """Make the handler of a worker process; `argument` is a Command as plain data."""
    return Execute(msgspec.convert(argument, Command))


class CommandFailed(Retry):
    """A command ended with a status other than 0. The name of this class is kept with the failure."""


# Only the standard library, without site packages: the process starts in milliseconds and is small.
_PROGRAM = """
import os, signal, sys

def kill(group):
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass

def has_one_of(files, process):
    for number in range(3):
        try:
            found = os.stat(f"/proc/{process}/fd/{number}")
        except OSError:
            continue
        if f"{found.st_dev}:{found.st_ino}" in files:
            return True

told = set()
for line in sys.stdin:
    {"+": told.add, "-": told.discard}[line[0]](line[1:].strip())
files = {name for name in told if ":" in name}
for group in told - files:
    kill(int(group))
for process in os.listdir("/proc") if files and os.path.isdir("/proc") else ():
    if process.isdigit() and has_one_of(files, process):
        try:
            kill(os.getpgid(int(process)))
        except ProcessLookupError:
            pass
"""


class Reaper:
    """A process that outlives its worker by a moment, and kills the commands that the worker left.

    A killed worker cannot end its commands. A command that goes on would work beside the next attempt at the
    same task. So the worker writes to the reaper, through a pipe, each process group that it starts, and
    each that has ended. The pipe ends when the worker dies.

    The worker may die after it has started a command and before it has written the group. So it first writes
    the names of the three temporary files that will be the standard input and outputs of the command. A
    new process holds the worker's end of the pipe until it has those files and a group of its own. So
    when the pipe ends, the reaper finds each command by its files, if there is /proc and the command has
    not replaced all three.
    """

    def __init__(self) -> None:
        # In a session of its own, and without our descriptors: a signal that ends the worker does not end it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _PROGRAM], stdin=subprocess.PIPE, start_new_session=True
        )
        assert self._process.stdin is not None
        kept_from_children.add(self._process.stdin.fileno())

    @contextmanager
    def watching(self, files: Sequence[IO[Any]]) -> Iterator[Callable[[int], None]]:
        """Within the block, if this process dies, the command with these `files` is killed.

        The yielded function adds a process group, which is killed, too.
        """
        found = [os.fstat(file.fileno()) for file in files]
        told = [f"{one.st_dev}:{one.st_ino}" for one in found]
        self._tell("+", told)

        def began(group: int) -> None:
            told.append(str(group))
            self._tell("+", told[-1:])

        try:
            yield began
        finally:
            self._tell("-", told)

    def _tell(self, sign: str, names: Sequence[str]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the reaper was killed: commands can no longer be watched
            self._process.stdin.write("".join(f"{sign}{name}\n" for name in names).encode())
            self._process.stdin.flush()


class Outlet:
    """Standard output, which all threads and processes of a fleet share. On a pipe, an output is read first.

    A pipe accepts the outputs of many tasks before its reader reads the first. If those tasks were acked
    then, a reader that ends (`head -1`) would lose the outputs of all. So a task is acked when its output
    was read.
    """

    def __init__(self) -> None:
        self._is_pipe = stat.S_ISFIFO(os.fstat(STDOUT).st_mode)
        self._lock = RealRuntime.lock()

    def pass_on(self, out: IO[bytes], err: IO[bytes]) -> None:
        """Write the outputs of a command; if standard output is a pipe, wait until it was read.

        Raises ReaderGone for output that was not read, OSError for output that was not written.
        """
        pass_on_errors(err)
        if not self._is_pipe:
            pass_on(out, STDOUT)
        elif _size_of(out):
            with self._turn():
                pass_on(out, STDOUT)
                LineWriter(STDOUT, lambda: None).is_drained(None)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Keep other outputs of this fleet out of the pipe."""
        with self._lock:  # a record lock keeps out other processes, but not threads of this one
            fcntl.lockf(STDOUT, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(STDOUT, fcntl.LOCK_UN)


def pass_on(file: IO[bytes], descriptor: int) -> None:
    """Write a whole file, of any size, to one of our descriptors. Raises OSError.

    On a terminal, `pass_on` erases the progress bar first. It adds a newline to a last line without one: the
    next drawing of the bar would erase that line.
    """
    if not _size_of(file):
        return
    before = after = b""
    if os.isatty(descriptor):
        file.seek(-1, os.SEEK_END)
        before, after = ERASE_LINE, b"" if file.read(1) == b"\n" else b"\n"
    file.seek(0)
    piece = before + file.read(PIECE_BYTES)
    while piece:
        piece = piece[os.write(descriptor, piece) :] or file.read(PIECE_BYTES)
    if after:
        os.write(descriptor, after)


def pass_on_errors(err: IO[bytes]) -> None:
    """Write the standard error of a command to ours, unless that is closed."""
    with suppress(OSError):
        pass_on(err, STDERR)


def _size_of(file: IO[bytes]) -> int:
    return file.seek(0, os.SEEK_END)


def _line_of(task: HeldTask) -> bytes:
    options = {} if task.hold is None else task.hold.queue.options
    return line_of(task_row(task, options, whole=True))


class Execute:
    def __init__(self, command: Command) -> None:
        self._command = command
        self._reaper = Reaper()
        self._outlet = Outlet()

    def __call__(self, given: HeldTask | list[HeldTask]) -> None:
        """Run the command for a task, or for a batch.

        Raises: Done, CommandFailed, Bury; LeaseLost if the lease ended, or TaskCancelled, when the command
        was killed; Unavailable if the machine cannot run the command, or its output was not read.
        """
        tasks = given if isinstance(given, list) else [given]
        data = b"".join(map(_line_of, tasks)) if tasks is given else as_bytes(tasks[0].data)
        with of_this_machine(), TemporaryFile() as stdin, TemporaryFile() as out, TemporaryFile() as err:
            stdin.write(data)
            stdin.seek(0)
            words = [os.fsencode(word).replace(PLACEHOLDER.encode(), data) for word in self._command.words]
            told = {} if tasks is given else environment_of(tasks[0])
            status = self._run(words, tasks, told, (stdin, out, err))
            if status:
                killed = "" if status > 0 else f"killed by {signal.Signals(-status).name}"
                raise CommandFailed(reason=killed or f"exit status {status}", detail=_detail(out, err))
            self._succeeded(tasks, out, err)

    def _run(
        self,
        words: Sequence[bytes],
        tasks: Sequence[HeldTask],
        told: Mapping[str, str],
        files: tuple[IO[bytes], ...],
    ) -> int:
        given, out, err = files
        with self._reaper.watching(files) as began:
            process = subprocess.Popen(
                words,
                stdin=given,
                stdout=out,
                stderr=err,
                env={**os.environ, **told},
                # A process group of its own: Ctrl-C does not reach it, and all its processes can be killed.
                start_new_session=True,
            )
            began(process.pid)
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return process.wait(LOOK_EVERY_S)
                if all(task.lost or task.cancelled for task in tasks):
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    tasks[0].check()

    def _succeeded(self, tasks: Sequence[Task], out: IO[bytes], err: IO[bytes]) -> None:
        into = self._command.into is not None
        try:
            values = output_values(out) if into else []
            has_result = any(task.result_ttl is not None for task in tasks)
            result = output_value(out) if has_result else None
        except (TooMuchForOneTransaction, PayloadTooLarge) as reason:
            raise Bury(f"its output: {reason}", _detail(out, err)) from None
        try:
            if into:
                pass_on_errors(err)
            else:
                self._outlet.pass_on(out, err)
        except (OSError, ReaderGone) as error:
            raise Unavailable(f"the output was not read ({error})") from error
        raise Done((lambda tr: self._put(tr, values)) if values else None, result)

    def _put(self, tr: Any, values: Sequence[Any]) -> None:
        """Raises QueueNotFound, QueueFull. Conflicts: as the put."""
        root, name = Subspace((), self._command.root), str(self._command.into)
        if Registry(root).find(tr, name).kind == PLAIN:
            Queue.named(tr, name, create=False, root=root).enqueue_many(tr, values)
        else:
            TaskQueue.open(tr, name, root=root).put_many(tr, values)


def require_batch(words: Sequence[str], into: str | None) -> None:
    """Raises UsageError for a command that needs a single task."""
    if into is not None:
        raise click.UsageError("--into is for single tasks: the output of a batch belongs to none of them")
    if any(PLACEHOLDER in word for word in words):
        raise click.UsageError("{} is for single tasks: a batch is on standard input, a line for each task")


def environment_of(task: Task) -> dict[str, str]:
    """Return the variables of a command that tell of its task; its headers are one JSON object."""
    headers = msgspec.json.encode(dict(task.headers)).decode()
    return {"FDBQUEUE_TASK": task.id, "FDBQUEUE_ATTEMPT": str(task.attempts), "FDBQUEUE_HEADERS": headers}


def as_bytes(data: Any) -> bytes:
    """Return a text or bytes unchanged, any other value as JSON."""
    if isinstance(data, bytes):
        return data
    return data.encode() if isinstance(data, str) else msgspec.json.encode(data)


def output_values(out: IO[bytes]) -> list[Any]:
    """Read the lines of a file, without empty ones, as JSON or as text. Raises TooMuchForOneTransaction."""
    size_bytes = _size_of(out)
    out.seek(0)
    lines = [line for line in out.read(limits.BATCH_BYTES_MAX + 1).splitlines() if line.strip()]
    if size_bytes > limits.BATCH_BYTES_MAX or len(lines) > limits.BATCH_ITEMS_MAX:
        raise TooMuchForOneTransaction(found=f"an output of {size_bytes:,} bytes", most=OUTPUT_MOST)
    return [_value(line.decode(errors="replace")) for line in lines]


def output_value(out: IO[bytes]) -> Any:
    """Read a file as one value: JSON, or else text without the end of its last line; None if it is empty.

    Raises PayloadTooLarge.
    """
    size_bytes = _size_of(out)
    if size_bytes > limits.PAYLOAD_BYTES_MAX:
        raise PayloadTooLarge(size_bytes=size_bytes, limit_bytes=limits.PAYLOAD_BYTES_MAX)
    out.seek(0)
    text = out.read().decode(errors="replace").removesuffix("\n")
    return _value(text) if text else None


def _value(line: str) -> Any:
    try:
        return value_of(line)
    except ValueError:  # it begins like JSON, but is text
        return line


def _detail(out: IO[bytes], err: IO[bytes]) -> str:
    """Return the ends of both outputs, short enough to be kept with the failure."""
    most = limits.FAILURE_DETAIL_BYTES_MAX // 2 - 20
    parts = []
    for name, file in (("stdout", out), ("stderr", err)):
        file.seek(max(0, _size_of(file) - most))
        text = file.read(most).decode(errors="replace").rstrip()
        parts += [f"--- {name}:\n{text}"] if text else []
    return "\n".join(parts)


@contextmanager
def of_this_machine() -> Iterator[None]:
    """Turn errors of an exhausted machine into Unavailable: they are not failures of the task."""
    try:
        yield
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise Unavailable(str(error)) from error
        raise


def settings_of(words: Sequence[str], into: str | None, root: Any) -> Mapping[str, Any]:
    """Return a Command as the plain data that `make` reads."""
    settings: Mapping[str, Any] = msgspec.to_builtins(Command(list(words), into, root.key()))
    return settings


HANDLER = f"{__name__}:{make.__name__}"
