"""The command line, `fdbqueue`: one module per group of commands."""

import signal
import sys
from collections.abc import Sequence

from fdbqueue import client_knobs

EXIT_ENVIRONMENT = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, then end the process with an exit status (exits.py)."""
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
    # All work is done. An interrupt while the interpreter ends must not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)
