"""Disciplines decide which ready task is next. Each is a file; discipline.py is their interface."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks.disciplines import bag as bag
    from fdbqueue.tasks.disciplines import fair as fair
    from fdbqueue.tasks.disciplines import keyed as keyed
    from fdbqueue.tasks.disciplines import lanes as lanes
    from fdbqueue.tasks.disciplines import micro as micro
else:
    __getattr__ = files_of(__name__)
