"""What is stored of tasks, and in which order: records and disciplines. The life cycle stands on these."""

from typing import TYPE_CHECKING

from fdbqueue.core.lazy import files_of

if TYPE_CHECKING:
    from fdbqueue.tasks.stored import charged as charged
    from fdbqueue.tasks.stored import keyed as keyed
else:
    __getattr__ = files_of(__name__)
