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

import click

from fdbqueue.cli.output import ReaderGone
from fdbqueue.database import engine_errors
from fdbqueue.error_root import MESSAGE_LENGTH_MAX
from fdbqueue.errors import (
    ExportInUse,
    ExportRefused,
    FdbQueueError,
    GroupClosed,
    GroupNotFound,
    GroupTimeout,
    InvalidArgument,
    LimitInUse,
    NoRedrive,
    NoResult,
    NotBuried,
    NotTaken,
    PayloadTooLarge,
    QueueBusy,
    QueueExists,
    QueueFull,
    RedriveUnderWay,
    RepartitionUnderWay,
    ResultTimeout,
    ScheduleExists,
    ScheduleUnfit,
    TaskFailed,
    TaskNotFound,
    TooMuchForOneTransaction,
    UniqueTaskBusy,
)
from fdbqueue.signals import Interrupted, Signals
from fdbqueue.trouble import text_of
from fdbqueue.visible import shortened, visible

DONE, REFUSED, ERROR = 0, 1, 2
_STDERR = 2
REFUSALS = (
    ExportInUse,
    ExportRefused,
    GroupClosed,
    GroupNotFound,
    GroupTimeout,
    LimitInUse,
    NoRedrive,
    NoResult,
    NotBuried,
    NotTaken,
    PayloadTooLarge,
    QueueBusy,
    QueueExists,
    QueueFull,
    RedriveUnderWay,
    RepartitionUnderWay,
    ResultTimeout,
    ScheduleExists,
    ScheduleUnfit,
    TaskFailed,
    TaskNotFound,
    TooMuchForOneTransaction,
    UniqueTaskBusy,
)


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
        with Signals() as signals:
            return _invoke(command, arguments, signals)
    except click.ClickException as mistake:
        return _say(mistake.format_message(), mistake.exit_code)
    except (InvalidArgument, *REFUSALS) as refusal:
        return _say(str(refusal), ERROR if isinstance(refusal, InvalidArgument) else REFUSED)
    except ReaderGone:
        return 128 + signal.SIGPIPE
    except Interrupted as interrupt:
        return 128 + interrupt.signal_number
    except (FdbQueueError, OSError, UnicodeError) as failure:  # argv need not be UTF-8
        return _say(str(failure), ERROR)
    except engine_errors() as failure:
        return _say(text_of(failure), ERROR)


def _invoke(command: click.Command, arguments: Sequence[str] | None, signals: Signals) -> int:
    if sys.stdout is None:
        raise CommandError("standard output is closed")
    result = command.main(arguments, prog_name="fdbqueue", standalone_mode=False, obj=signals)
    sys.stdout.flush()
    return result if isinstance(result, int) else DONE


def say(message: str) -> None:
    """Print one line on standard error, if that is open. It is cut, as an argument may have megabytes."""
    if sys.stderr is not None:
        line = shortened(visible(" ".join(message.split())), MESSAGE_LENGTH_MAX)
        print(f"fdbqueue: {line}", file=sys.stderr, flush=True)


def _say(message: str, status: int) -> int:
    say(message)
    return status


def _fill_standard_descriptors() -> None:
    # If descriptor 0, 1 or 2 is closed, the first file that the engine opens gets its number, and our output
    # would be written into the data.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)
