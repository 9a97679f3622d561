"""The program with all its commands: each module adds its own to the group."""

from fdbqueue.cli import aside, completion, demo, elements, items, queues, tasks, top, work
from fdbqueue.cli.group import cli as cli

__all__ = ["cli"]
ADDED = (aside, completion, demo, elements, items, queues, tasks, top, work)
"""What is imported for what it adds."""
