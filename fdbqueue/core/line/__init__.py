"""The waiting line: one for contention and for waiting, whatever the queue (docs/protocols.md)."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.core.line import overtaking as overtaking
    from fdbqueue.core.line import waiting as waiting
else:
    __getattr__ = files_of(__name__)
