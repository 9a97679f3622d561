"""The program with all its commands: each module adds its commands to the group when it is imported."""

from fdbqueue.cli import (
    aside,
    completion,
    dashboard,
    dead,
    demo,
    doctor,
    elements,
    ended,
    explain,
    follow,
    imports,
    items,
    metrics,
    partitions,
    queues,
    redrive,
    result,
    spread,
    tasks,
    top,
    verify,
    work,
)
from fdbqueue.cli.group import cli as cli

__all__ = ["cli"]
ADDED = (
    aside,
    completion,
    dashboard,
    dead,
    demo,
    doctor,
    elements,
    ended,
    explain,
    follow,
    imports,
    items,
    metrics,
    partitions,
    queues,
    redrive,
    result,
    spread,
    tasks,
    top,
    verify,
    work,
)
"""Modules that are imported only to add their commands."""
