"""The end of the command line: one line on standard error, and an exit status for shell scripts.

0    done
1    nothing found, or refused (an empty queue, a value too large, a `clear` without --yes)
2    a mistake in the arguments or the input (no such queue), or an environment that does not work
130  interrupted (143 terminated, 129 hung up)
141  the reader of our output closed the pipe

And standard output, with an answer to how much of it was written, and how much was read. A buffered stream
accepts lines that may never reach the reader. So does a pipe, which holds 64 kB. A LineWriter writes to the
descriptor itself, only when there is room: a pipe that polls writable accepts PIPE_BUF bytes without
blocking. Its `is_drained` says that a line was read.
"""

import errno
import fcntl
import os
import select
import signal
import stat
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from fdbqueue.core.errors import ERROR as ERROR
from fdbqueue.core.errors import MESSAGE_LENGTH_MAX, FdbQueueError
from fdbqueue.core.errors import REFUSED as REFUSED
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.signals import Interrupted, Signals, hear_of_children
from fdbqueue.core.visible import shortened, text_of, visible

# A line waits for room in mid-write for this long before `check` is called.
_PATIENCE_MS = 200
# Most readers take a line within microseconds; a wait for a slow one must not use a processor.
_FIRST_LOOK_S, _LONGEST_LOOK_S = 20e-6, 0.05
_UNREAD_BYTES = {stat.S_IFIFO: termios.FIONREAD, stat.S_IFSOCK: termios.TIOCOUTQ}
"""The ioctl that counts unread bytes, by the type of a descriptor; a file or a terminal has none."""


class ReaderGone(Exception):
    """The reader of standard output has closed it."""


class LineWriter:
    def __init__(self, descriptor: int, check: Callable[[], None]) -> None:
        """`check` is called now and then while half a line waits for room; it may raise."""
        self._descriptor = descriptor
        self._check = check
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._gone = select.poll()
        self._gone.register(descriptor, 0)  # errors only, not the readiness for a write
        self._counts_unread = _UNREAD_BYTES.get(stat.S_IFMT(os.fstat(descriptor).st_mode))

    def is_read(self) -> bool:
        """True if a reader still has the other end open."""
        return not self._is_gone(0)

    def wait(self) -> None:
        """Wait until there is room. Raises ReaderGone."""
        self._has_room(None)

    def is_drained(self, timeout_s: float | None) -> bool:
        """True if the reader has taken all bytes from a pipe, after a wait of up to `timeout_s` seconds.

        None waits for ever. A file or a terminal is always drained. Bytes of other processes in the same
        pipe count, too. Raises ReaderGone if the reader has gone and left some unread.
        """
        until_s = float("inf") if timeout_s is None else RealRuntime.monotonic() + timeout_s
        look_s = _FIRST_LOOK_S
        while self._unread_bytes():
            # In this order: once the reader has gone, the number of unread bytes is final.
            if self._is_gone(look_s):
                if self._unread_bytes():
                    raise ReaderGone
                return True
            if RealRuntime.monotonic() >= until_s:
                return False
            look_s = min(2 * look_s, _LONGEST_LOOK_S)
        return True

    def write(self, line: bytes) -> bool:
        """Write the whole line; False if nothing was written because there is no room at present.

        Raises ReaderGone, or an OSError, for a line that was not, or not wholly, written.
        """
        if not self._has_room(_PATIENCE_MS):
            return False
        while line:
            line = line[self._write_some(line[: select.PIPE_BUF]) :]
            while line and not self._has_room(_PATIENCE_MS):
                self._check()
        return True

    def print(self, line: bytes) -> None:
        """Wait for room, then write the line."""
        self.wait()
        self.write(line)

    def _unread_bytes(self) -> int:
        if self._counts_unread is None:
            return 0
        counted = fcntl.ioctl(self._descriptor, self._counts_unread, bytes(4))
        return int.from_bytes(counted, sys.byteorder, signed=True)

    def _is_gone(self, within_s: float) -> bool:
        """True if the reader has closed the pipe, or closes it within the time."""
        if within_s < 0.001:  # poll() counts in milliseconds
            RealRuntime.sleep(within_s)
            within_s = 0
        return bool(self._gone.poll(within_s * 1000))

    def _has_room(self, timeout_ms: int | None) -> bool:
        ready = self._poll.poll(timeout_ms)
        if ready and ready[0][1] & (select.POLLERR | select.POLLHUP):
            raise ReaderGone
        return bool(ready)

    def _write_some(self, part: bytes) -> int:
        try:
            return os.write(self._descriptor, part)
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            error.filename = "standard output"
            raise


DONE = 0
_STDERR = 2
_READER_GONE = 128 + signal.SIGPIPE
NO_DIRECTORY = "the working directory was removed: change to one that exists"
_WORDS: Mapping[int, str] = {
    errno.ENOENT: "there is no such file or directory",
    errno.ENOTDIR: "a part of this path is a file, and no directory",
    errno.EISDIR: "it is a directory, and no file",
    errno.ELOOP: "its symbolic links lead in a circle",
    errno.ENAMETOOLONG: "this name is too long for its file system",
    errno.EACCES: "this user may not open or change it",
    errno.EPERM: "this user may not do that with it",
    errno.EROFS: "its file system can only be read",
    errno.ENOSPC: "there is no room left on its disk",
    errno.EDQUOT: "this user has no room left on its disk",
    errno.EFBIG: "it would become too large: `ulimit -f` or its file system bounds the size of a file",
    errno.EIO: "the disk has failed: the log of the system tells more",
    errno.EMFILE: "this process has too many open files: raise `ulimit -n`",
    errno.ENFILE: "the system has too many open files",
    errno.ENOMEM: "the memory does not suffice",
}


class Refused(click.ClickException):
    """Nothing was found, or the command was refused; the message says why."""

    exit_code = REFUSED


class CommandError(click.ClickException):
    """The arguments, the input or the environment prevent the command."""

    exit_code = ERROR


def run(command: click.Command, arguments: Sequence[str] | None = None) -> int:
    """Run `command`; return the exit status of the process."""
    _fill_standard_descriptors()
    try:
        hear_of_children()  # the program that started this one may have ignored them
        with Signals() as signals:
            result = command.main(arguments, prog_name="fdbqueue", standalone_mode=False, obj=signals)
            if sys.stdout is not None:
                sys.stdout.flush()
            return result if isinstance(result, int) else DONE
    except click.ClickException as mistake:
        return _say(mistake.format_message(), mistake.exit_code)
    except ReaderGone:
        return _READER_GONE
    except SystemExit as ended:  # click and rich end so, with 1 if the reader of our output is gone
        return _READER_GONE if ended.code == 1 else int(ended.code or DONE)
    except Interrupted as interrupt:
        return 128 + interrupt.signal_number
    except FdbQueueError as failure:
        return _say(str(failure), failure.exit_code)
    except UnicodeError as failure:  # argv need not be UTF-8
        return _say(str(failure), ERROR)
    except OSError as failure:
        return _say(told(failure), ERROR)
    except engine_errors() as failure:
        return _say(text_of(failure), ERROR)


def say(message: str) -> None:
    """Print one line on standard error. It is cut, as an argument may have megabytes.

    A standard error that is closed or full ends no command: no other place is left to tell it.
    """
    if sys.stderr is not None:
        line = shortened(visible(" ".join(message.split())), MESSAGE_LENGTH_MAX)
        with suppress(OSError):
            print(f"fdbqueue: {line}", file=sys.stderr, flush=True)


def require_stdout() -> None:
    """Raises: CommandError, before a command that prints has done anything, if standard output is closed."""
    if sys.stdout is None:
        raise CommandError("standard output is closed")


def _say(message: str, status: int) -> int:
    say(message)
    return status


def _fill_standard_descriptors() -> None:
    # If descriptor 0, 1 or 2 is closed, the first file that the engine opens gets its number, and our output
    # would be written into the data. Worker processes inherit these descriptors, for the same reason.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


def told(error: OSError) -> str:
    """The error without its number, and with its file, if it tells one."""
    path = error.filename
    if error.errno == errno.ENOENT and is_removed(path):
        return NO_DIRECTORY
    said = _WORDS.get(error.errno or 0) or error.strerror or str(error)
    return f"{os.fsdecode(path)}: {said}" if isinstance(path, str | bytes) else said


def is_removed(path: str | bytes | None) -> bool:
    """True if the working directory, from which the path leads, was removed."""
    if path is not None and os.path.isabs(path):
        return False
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


@contextmanager
def about(path: Path | str) -> Iterator[None]:
    """Name the path in errors of the block that name no file, such as those of a write."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def look_in_working_directory() -> None:
    """Let imports look into the working directory first.

    Only for modules that the user names: other users could plant a module in a directory that they may write
    to. Raises: CommandError if the directory was removed.
    """
    if is_removed(None):
        raise CommandError(NO_DIRECTORY)
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
