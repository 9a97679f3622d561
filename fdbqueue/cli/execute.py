"""`fdbqueue work --exec`: a process for each task. What a worker process of the fleet does with one.

The task's data stands in place of {} inside any argument, and is what the process reads; no shell is in
between. Exit status 0 acks the task; anything else fails the attempt, and what was printed is kept with it.
Output of those that succeed goes on to ours, and on a pipe one task's output at a time, which has to be read
before the task is acked; or, line by line, into a queue: in the transaction of the ack, and so exactly once.
A process does not outlive the lease it works under, nor the worker that started it.
"""

import errno
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import IO, Any

import msgspec
from fdb.subspace_impl import Subspace

from fdbqueue import limits
from fdbqueue.cli.outlet import Outlet, pass_on_errors
from fdbqueue.cli.output import ReaderGone
from fdbqueue.cli.reaper import Reaper
from fdbqueue.cli.values import value_of
from fdbqueue.errors import TooMuchForOneTransaction
from fdbqueue.fleet.held import HeldTask
from fdbqueue.fleet.outcomes import Bury, Done, Retry, Unavailable
from fdbqueue.recipe.queue import KIND as PLAIN
from fdbqueue.recipe.queue import Queue
from fdbqueue.registry.registry import Registry
from fdbqueue.tasks.queue import TaskQueue

PLACEHOLDER = "{}"
LOOK_EVERY_S = 0.5
# What the machine has run out of: processes, memory, descriptors, room for what they print.
EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})


class Command(msgspec.Struct, frozen=True):
    """What to run, and where its output goes: to ours, or into the queue of that name under that root."""

    words: list[str]
    into: str | None = None
    root: bytes = b""


def make(argument: Any) -> "Execute":
    """The handler for a Command as plain data, in a worker process."""
    return Execute(msgspec.convert(argument, Command))


class CommandFailed(Retry):
    """A command ended with a status other than 0. Its class is what is written down of the attempt."""


class Execute:
    def __init__(self, command: Command) -> None:
        self._command = command
        self._reaper = Reaper()
        self._outlet = Outlet()

    def __call__(self, task: HeldTask) -> None:
        """Raises Done, CommandFailed, Bury; LeaseLost, when the process has been killed because of it;
        Unavailable, if the machine cannot run it, or its output was not read.
        """
        data = as_bytes(task.data)
        with of_this_machine(), TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(data)
            given.seek(0)
            status = self._run(filled(self._command.words, data), task, (given, out, err))
            if status:
                raise CommandFailed(reason=_ending(status), detail=_detail(out, err))
            self._succeeded(out, err)

    def _run(self, words: Sequence[bytes], task: HeldTask, files: tuple[IO[bytes], ...]) -> int:
        given, out, err = files
        with self._reaper.watching(files) as began:
            process = subprocess.Popen(
                words,
                stdin=given,
                stdout=out,
                stderr=err,
                env=os.environ | {"FDBQUEUE_TASK": task.id, "FDBQUEUE_ATTEMPT": str(task.attempts)},
                # A group of its own: Ctrl-C at our terminal is not meant for it, and all of it can be killed.
                start_new_session=True,
            )
            began(process.pid)
            while (status := _status(process)) is None:
                if task.lost:
                    _kill(process)
                    task.check()
        return status

    def _succeeded(self, out: IO[bytes], err: IO[bytes]) -> None:
        if self._command.into is None:
            try:
                self._outlet.pass_on(out, err)
            except (OSError, ReaderGone) as error:
                raise Unavailable(f"nothing reads the output ({error})") from error
            return
        pass_on_errors(err)
        try:
            values = output_values(out)
        except TooMuchForOneTransaction as reason:
            raise Bury(f"its output: {reason}", _detail(out, err)) from None
        raise Done(lambda tr: self._put(tr, values) if values else None)

    def _put(self, tr: Any, values: Sequence[Any]) -> None:
        put_into(tr, Subspace((), self._command.root), str(self._command.into), values)


def as_bytes(data: Any) -> bytes:
    """A text and bytes as they are, everything else as JSON."""
    if isinstance(data, bytes):
        return data
    return data.encode() if isinstance(data, str) else msgspec.json.encode(data)


def filled(words: Sequence[str], data: bytes) -> list[bytes]:
    return [os.fsencode(word).replace(PLACEHOLDER.encode(), data) for word in words]


def output_values(out: IO[bytes]) -> list[Any]:
    """The lines of a file, empty ones aside: JSON, or else texts. Raises TooMuchForOneTransaction."""
    size_bytes = out.seek(0, os.SEEK_END)
    out.seek(0)
    lines = [line for line in out.read(limits.BATCH_BYTES_MAX + 1).splitlines() if line.strip()]
    if size_bytes > limits.BATCH_BYTES_MAX or len(lines) > limits.BATCH_ITEMS_MAX:
        raise TooMuchForOneTransaction(
            count=len(lines),
            size_bytes=size_bytes,
            count_max=limits.BATCH_ITEMS_MAX,
            size_bytes_max=limits.BATCH_BYTES_MAX,
        )
    return [_value(line.decode(errors="replace")) for line in lines]


def put_into(tr: Any, root: Subspace, name: str, values: Sequence[Any]) -> None:
    """Put into a queue of either sort. Raises QueueNotFound, QueueFull; conflicts as the put of its kind."""
    if Registry(root).find(tr, name).kind == PLAIN:
        Queue.named(tr, name, create=False, root=root).enqueue_many(tr, values)
    else:
        TaskQueue.open(tr, name, root=root).put_many(tr, values)


def _value(line: str) -> Any:
    try:
        return value_of(line)
    except ValueError:  # it begins like JSON, and is a text all the same
        return line


def _status(process: "subprocess.Popen[bytes]") -> int | None:
    try:
        return process.wait(LOOK_EVERY_S)
    except subprocess.TimeoutExpired:
        return None


def _kill(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ending(status: int) -> str:
    return f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"


def _detail(out: IO[bytes], err: IO[bytes]) -> str:
    """The ends of what was printed, so that both fit in what is kept."""
    most = limits.FAILURE_DETAIL_BYTES_MAX // 2 - 20
    parts = [("stdout", _end_of(out, most)), ("stderr", _end_of(err, most))]
    return "\n".join(f"--- {name}:\n{text.rstrip()}" for name, text in parts if text.strip())


def _end_of(file: IO[bytes], bytes_max: int) -> str:
    file.seek(max(0, file.seek(0, os.SEEK_END) - bytes_max))
    return file.read(bytes_max).decode(errors="replace")


@contextmanager
def of_this_machine() -> Iterator[None]:
    """What this machine has run out of is not the fault of the task that was to have it."""
    try:
        yield
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise Unavailable(str(error)) from error
        raise


def settings_of(words: Sequence[str], into: str | None, root: Any) -> Mapping[str, Any]:
    """A Command as the plain data that `make` reads."""
    settings: Mapping[str, Any] = msgspec.to_builtins(Command(list(words), into, root.key()))
    return settings


HANDLER = f"{__name__}:{make.__name__}"
