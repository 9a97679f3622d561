"""The public errors of element queues, of imports and of exports; errors.py has them, too, and the rules for all."""

from fdbqueue.error_root import FdbQueueError

__all__ = [
    "CannotLock",
    "DamagedElement",
    "DirectoryQueueInUse",
    "ElementNotFound",
    "ElementNotLocked",
    "ExportInUse",
    "ExportRefused",
    "ExportUnusable",
    "ImportOvertaken",
    "ImportUnfinished",
    "InvalidElement",
    "InvalidElementName",
    "InvalidSchema",
    "LockLost",
    "NoNameAtThatTime",
    "NotADirectoryQueue",
    "OriginChanged",
    "OriginUnusable",
    "QueueError",
    "QueueInSet",
    "QueueLockError",
    "UnknownSchema",
    "UnreadableElement",
]


class QueueError(FdbQueueError):
    """The element queue refused the call."""


class InvalidSchema(QueueError, ValueError):
    """invalid schema: {reason}"""


class UnknownSchema(QueueError):
    """unknown schema: open the element queue with a schema to add and to get."""


class InvalidElement(QueueError, ValueError):
    """{reason}"""


class InvalidElementName(QueueError, ValueError):
    """invalid element name: {name}"""


class NoNameAtThatTime(QueueError):
    """The clock says {seconds:.0f} s since 1970: names of elements exist from 1970 to 2106 only. Set the clock, then add again. Nothing was added."""


class UnreadableElement(QueueError, ValueError):
    """{reason}: element {name} was added with another schema. It stays where it is."""


class DamagedElement(UnreadableElement):
    """The element {name} of the queue {queue!r} is damaged ({reason}): it is set aside when it is got or dequeued, and `fdbqueue aside` lists it."""


class QueueLockError(QueueError):
    """couldn't lock element: {name}: {reason}"""

    reason: str


class CannotLock(QueueError, OSError):
    """cannot lock {name}: {reason}"""


class ElementNotLocked(QueueError, FileNotFoundError):
    """cannot {action} {name}: not locked{reason}"""


class LockLost(ElementNotLocked):
    """cannot {action} {name}: this lock was broken, and the element has another lock now. Nothing was changed."""


class ElementNotFound(QueueError, FileNotFoundError):
    """cannot {action} {name}: there is no such element"""


class QueueInSet(QueueError):
    """queue already in the set: {path}"""


class NotADirectoryQueue(FdbQueueError, ValueError):
    """{path} is no directory queue: it has neither a directory "temporary" nor directories of eight hexadecimal digits."""


class DirectoryQueueInUse(FdbQueueError):
    """Another process imports or exports {path}: wait until it has ended."""


class OriginUnusable(FdbQueueError, ValueError):
    """{path} cannot be imported: {reason}"""


class OriginChanged(FdbQueueError):
    """{label} was imported into this queue before, but its last imported item is not there any more: it is another queue of the same name, or was changed. Nothing was changed. --source NAME imports all of it under another name."""


class ImportOvertaken(FdbQueueError):
    """Another process imports {label} into the same queue: wait until it has ended."""


class ExportUnusable(FdbQueueError, ValueError):
    """{path} cannot be used as an export: {reason}"""


class ExportInUse(FdbQueueError):
    """Another process writes the export {path}: wait until it has ended."""


class ExportRefused(FdbQueueError):
    """The queue {name!r} is not exported: {reason}"""


class ImportUnfinished(FdbQueueError):
    """The queue {name!r} is not whole yet: run `fdbqueue import file` with its export again, or drop the queue."""
