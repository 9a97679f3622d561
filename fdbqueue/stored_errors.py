"""The public errors of stored data; errors.py has them, too, and the rules for all."""

from fdbqueue.error_root import FdbQueueError

__all__ = [
    "DefinitionUnreadable",
    "LayoutNewer",
    "LimitUnreadable",
    "OlderSessions",
    "PayloadUnreadable",
    "RecordUnreadable",
]


class PayloadUnreadable(FdbQueueError, ValueError):
    """Codec {codec!r} cannot read a stored payload ({reason}): the payload is damaged, or was put with another codec."""


class RecordUnreadable(FdbQueueError, ValueError):
    """The value of {key} in the queue {name!r} cannot be read ({reason}). Takes and sweeps set it aside: `fdbqueue aside` lists, exports and removes it."""


class DefinitionUnreadable(FdbQueueError, ValueError):
    """The definition of the queue {name!r} cannot be read ({reason}): a newer release wrote it, or it is damaged. Nothing was changed."""


class LimitUnreadable(FdbQueueError, ValueError):
    """The limit {name!r} cannot be read ({reason}), and limits nothing: set it anew, with Limit.set() or `fdbqueue limit set`."""

    name: str


class LayoutNewer(DefinitionUnreadable):
    """The queue {name!r} has key layout {layout}, and this release of fdbqueue knows layouts up to {known}: use a newer release. Nothing was changed."""

    name: str
    layout: int


class OlderSessions(FdbQueueError):
    """Processes of an earlier release of fdbqueue are alive: {told}. Stop them, then upgrade; one that was killed counts until its session is dead. Nothing was changed."""
