"""The command line, `fdbqueue`: one module per group of commands.

The files named here are for few commands: their first use imports them, and rich.
"""

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fdbqueue.core import binding
from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.operate.cli import auditing as auditing
    from fdbqueue.operate.cli import lasting as lasting
    from fdbqueue.operate.cli import terminal as terminal
    from fdbqueue.operate.cli import trash as trash
else:
    __getattr__ = files_of(__name__)

EXIT_ENVIRONMENT = 2


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, then end the process with an exit status (exits.py)."""
    try:
        from fdbqueue.operate.cli.commands import cli
        from fdbqueue.operate.cli.exits import run
    except ModuleNotFoundError as missing:
        if missing.name not in ("click", "rich"):
            raise
        print("fdbqueue: the command line is an extra: pip install 'fdbqueue[cli]'", file=sys.stderr)
        sys.exit(EXIT_ENVIRONMENT)
    binding.for_this_program()
    status = run(cli, arguments)
    # All work is done. An interrupt while the interpreter ends must not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(status)
