"""The end of the command line: one line on standard error, and an exit status for shell scripts.

0    done
1    nothing found, or refused (an empty queue, a value too large, a `clear` without --yes)
2    a mistake in the arguments or the input (no such queue), or an environment that does not work
130  interrupted (143 terminated, 129 hung up)
141  the reader of our output closed the pipe
"""

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from fdbqueue.core.error_root import ERROR as ERROR
from fdbqueue.core.error_root import MESSAGE_LENGTH_MAX, FdbQueueError
from fdbqueue.core.error_root import REFUSED as REFUSED
from fdbqueue.core.fdberror import engine_errors
from fdbqueue.core.signals import Interrupted, Signals, hear_of_children
from fdbqueue.core.visible import shortened, text_of, visible
from fdbqueue.operate.cli.output import ReaderGone
from fdbqueue.operate.cli.system import told

DONE = 0
_STDERR = 2
_READER_GONE = 128 + signal.SIGPIPE


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
            return _invoke(command, arguments, signals)
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


def _invoke(command: click.Command, arguments: Sequence[str] | None, signals: Signals) -> int:
    result = command.main(arguments, prog_name="fdbqueue", standalone_mode=False, obj=signals)
    if sys.stdout is not None:
        sys.stdout.flush()
    return result if isinstance(result, int) else DONE


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
