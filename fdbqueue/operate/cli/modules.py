"""Modules that the user names: they are found as by `python -m`."""

import os
import sys

from fdbqueue.operate.cli.exits import CommandError
from fdbqueue.operate.cli.system import NO_DIRECTORY, is_removed


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
