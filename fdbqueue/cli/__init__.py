"""The command line: `fdbqueue put`, `get`, `size`, `peek`, `clear`, `elements`, `demo`."""

import signal
import sys
from collections.abc import Sequence

from fdbqueue import client_knobs

EXIT_ENVIRONMENT = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point; ends the process with an exit status (see fdbqueue.cli.exits)."""
    try:
        from fdbqueue.cli.commands import cli
        from fdbqueue.cli.exits import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "rich"):
            raise
        print("fdbqueue: the command line is an extra: pip install 'fdbqueue[cli]'", file=sys.stderr)
        sys.exit(EXIT_ENVIRONMENT)
    client_knobs.for_this_program()
    status = run(cli, arguments)
    # There is nothing left to lose: an interrupt of the interpreter's own end should not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)
