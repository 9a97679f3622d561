"""The public errors: one root; data as attributes; the docstring is the message. docs/errors.md lists them.

The errors of the engines (`fdb.FDBError`, `fdbqueue.embedded.FDBError`) are *not* below this root: a body
that catches `FdbQueueError` would swallow a retryable error, and commit half of its work.
"""

from typing import TYPE_CHECKING, Any

from fdbqueue.core.error_root import REFUSED, public_errors
from fdbqueue.core.error_root import FdbQueueError as FdbQueueError
from fdbqueue.core.feature_errors import *  # noqa: F403  # its errors


class NotADatabase(FdbQueueError, TypeError):
    """Expected a database or a transaction (ours or the binding's), got {got}."""


class WrongFace(NotADatabase):
    """A {got} of fdbqueue.aio was given to a blocking call: use the class of the same name in fdbqueue.aio, and await its verbs."""


class BlockingCall(FdbQueueError, RuntimeError):
    """This call would stop the event loop while it waits: await a verb of fdbqueue.aio, or await db.run(function), which runs blocking code beside the loop."""


class WrongLoop(FdbQueueError, RuntimeError):
    """A database of fdbqueue.aio works on the event loop that opened it, in the same process. {reason}"""


class DatabaseClosed(FdbQueueError):
    """This database has been closed: open another with fdbqueue.open()."""


class WaitStopped(FdbQueueError):
    """The `stop` event was set while this call waited: the call has left the line, and nothing was changed."""


class UnknownUrl(FdbQueueError, ValueError):
    """{url!r} names no engine: use "fdb:", "fdb:CLUSTER_FILE", "embedded:PATH", also with "?durability=soon" or "?durability=process", or "memory:"."""


class ClientLibraryMissing(FdbQueueError, ImportError):
    """FoundationDB's client library (libfdb_c) is not installed: install the foundationdb-clients package of your cluster's version."""


class ClientLibraryTooOld(FdbQueueError, ImportError):
    """The client library (libfdb_c) is too old: {reason} Install foundationdb-clients of your cluster's release, 7.1 or later. If the library has that release, install its binding: for a library 7.3, pip install 'fdbqueue[fdb73]'."""

    heals = False


class StorageFull(FdbQueueError):
    """{cause}: the transaction was not committed, earlier ones are safe. A transaction that removes more than it adds is still committed: consume, or {cure}, then try again."""

    path: str
    code: int
    cause: str
    cure: str


class MemoryFull(StorageFull):
    """This process gets no more memory or address space for {path}: the transaction was not committed, earlier ones are safe. The disk is not the cause: {cure}."""


class StorageFormat(FdbQueueError):
    """A newer fdbqueue wrote {path} (format {found}, this one reads {known}): upgrade fdbqueue to open it."""

    heals = False


class StorageInUse(FdbQueueError):
    """{path} cannot be opened: {reason}"""


class UnsafePath(StorageInUse):
    """{path} is not opened: {reason}"""


class StorageReplaced(FdbQueueError):
    """{path}: the file {file} was removed or replaced while this process had it open. Nothing was committed. Stop all processes that use this directory, then start them again. Never delete a file of a directory in use."""

    heals = False
    path: str
    file: str


class DescriptorsClosed(StorageReplaced):
    """{path}: this process has closed descriptors that the database had open, as the start of a daemon does. Nothing was committed. Start the process again, and open the database behind that step."""


class PayloadTooLarge(FdbQueueError, exit_code=REFUSED):
    """A payload of {size_bytes} bytes is over the limit of {limit_bytes} bytes: store it elsewhere, and put its name into the queue."""


class TooMuchForOneTransaction(FdbQueueError, exit_code=REFUSED):
    """{found}: too much for one transaction (at most {most}): split them over several."""


class TooMuchToSweep(FdbQueueError):
    """Queue {name!r}: a take in one transaction cannot tell whether an item is ready behind so many that are due, expired or unreadable. Take with the database, or try again: each process that uses the queue sweeps meanwhile."""

    name: str


class UnknownCodec(FdbQueueError, ValueError):
    """Unknown codec {codec!r}: "json", "bytes" and "msgpack" are built in, fdbqueue.register_codec() adds others. Nothing was changed."""

    codec: str


class CodecExists(FdbQueueError, ValueError):
    """A codec named {codec!r} is registered already."""


class PayloadUnsupported(FdbQueueError, TypeError):
    """codec {codec!r} cannot carry {type} at {place}: {reason}"""

    codec: str
    type: str
    place: str
    reason: str

    def at(self, index: int) -> "PayloadUnsupported":
        """Return this error for the value at `index` of a batch."""
        place = f"data[{index}]" + self.place.removeprefix("data")
        return PayloadUnsupported(codec=self.codec, type=self.type, place=place, reason=self.reason)


class PayloadUnknown(FdbQueueError, LookupError):
    """Codec {codec!r} needs something that this process does not have ({reason}): import or upgrade it. The item stays where it is."""


class PayloadMismatch(FdbQueueError, ValueError):
    """The payload does not fit {type}, the type of this queue handle ({reason}): a handle of another type put it, or the type has changed. The item stays where it is."""


class InvalidArgument(FdbQueueError, ValueError):
    """{name} must be {wanted}, not {got!r}."""

    name: str
    wanted: str
    got: Any


class WrongType(InvalidArgument, TypeError):
    """{name} must be {wanted}, not {got!r}."""


class DeferredBody(InvalidArgument, TypeError):
    """{name} must be a plain function, not {kind} ({got!r}): calling it does not run its body. {cure}"""


class DeferredResult(FdbQueueError, TypeError):
    """{name} returned {kind}: its body has not run. {cure}"""


class VerdictReturned(FdbQueueError, TypeError):
    """The handler returned {verdict} instead of raising it: write `raise {verdict}(...)`."""


class QueueNotFound(FdbQueueError, LookupError):
    """There is no queue named {name!r}: create it first."""


class LimitNotFound(FdbQueueError, LookupError):
    """There is no limit named {name!r}: set it first, with Limit.set() or `fdbqueue limit set`."""

    name: str


class LimitInUse(FdbQueueError, exit_code=REFUSED):
    """The limit {name!r} is in use by {used:~task}: wait until all slots are free, or give it more slots in place of deleting it. Nothing was changed."""


class QueueDropped(QueueNotFound):
    """The queue {name!r} was dropped, or dropped and created again, after this handle was opened: open it again."""


class SubspaceInUse(FdbQueueError):
    """The subspace {prefix!r} holds other data: fdbqueue writes no such key as {shown!r} there. Nothing was changed. Choose another root or subspace."""

    prefix: bytes
    key: bytes


class QueueKindMismatch(FdbQueueError):
    """Queue {name!r} is of kind {found}, not {wanted}."""

    name: str
    found: str
    wanted: str


class NotGranted(FdbQueueError, AttributeError):
    """A {grant} has no `{verb}`: it has one half of a queue. Open the queue itself for all verbs."""


class NotCopied(FdbQueueError, TypeError):
    """A {kind} is of one process, and is neither copied nor pickled: threads may share it, and another process opens it by the URL of its database and its name."""


class NotTaken(FdbQueueError, exit_code=REFUSED):
    """Task {id} is not held under this lease, or no longer: nothing was changed."""


class NotBuried(FdbQueueError, exit_code=REFUSED):
    """Task {id} is {state}, not buried: nothing was changed."""


class NoRedrive(FdbQueueError, LookupError, exit_code=REFUSED):
    """There is no redrive of the queue {name!r} that is running or paused."""


class RedriveUnderWay(FdbQueueError, exit_code=REFUSED):
    """A redrive of the queue {name!r} is {state}: end it, or stop it, before another begins."""


class TaskNotFound(FdbQueueError, LookupError, exit_code=REFUSED):
    """There is no task {id} in the queue {name!r}."""


class TaskFailed(FdbQueueError, exit_code=REFUSED):
    """Task {id} of the queue {name!r} is buried: {reason}. After a kick, it may still have a result."""


class NoResult(FdbQueueError, LookupError, exit_code=REFUSED):
    """Task {id} of the queue {name!r} has no result: {reason}."""


class ResultTimeout(FdbQueueError, TimeoutError, exit_code=REFUSED):
    """Task {id} of the queue {name!r} has no result yet: it is {state}."""


class UniqueTaskBusy(FdbQueueError, exit_code=REFUSED):
    """Task {id} has the unique key {unique!r} and is {state}: its data cannot be replaced, and nothing was changed. Put with on_conflict="skip" to get this task, or give its puts scope="queued" to get another one now."""


class GroupNotFound(FdbQueueError, LookupError, exit_code=REFUSED):
    """There is no group {id}: it has ended, and the time for which its counts were kept is over, or it never was under this root."""


class GroupClosed(FdbQueueError, exit_code=REFUSED):
    """The group {id} is {how}, and takes no more members: put them before its close, or into another group. Nothing was put."""


class GroupTimeout(FdbQueueError, TimeoutError, exit_code=REFUSED):
    """The group {id} has not ended yet: it is {open}, with {left:~member} left."""


class StepUnderWay(FdbQueueError):
    """The step {step!r} of task {id} of the queue {name!r} is under way in another thread, or around this call: give each step a name of its own. Nothing was stored."""


class TooManySteps(FdbQueueError):
    """The step {step!r} of task {id} of the queue {name!r} is one too many: a task has at most {steps_max} steps of {bytes_max} bytes together. Its result was not stored."""


class LeaseLost(FdbQueueError):
    """The lease of task {id} is over, and another session may take the task: stop working on it."""


class TaskCancelled(FdbQueueError):
    """Task {id} was cancelled: end its attempt."""


class EffectTooSlow(FdbQueueError):
    """Task {id}: the transaction of its ack has been open for {seconds:.1f} s, and FoundationDB commits none after 5 s: do the slow part before it, and the writes in `raise Done(effect)`."""


class EffectTooLarge(FdbQueueError):
    """Task {id}: the transaction of its ack has {size_bytes} bytes, and FoundationDB commits none above 10,000,000: write less, or split the task."""


class WorkerUsed(FdbQueueError):
    """This worker has run already: make another."""


class HandlerNotFound(FdbQueueError, ImportError):
    """There is no handler {target}: {reason}."""


class DatabaseNotFound(FdbQueueError):
    """There is no database at {url}, or it does not answer."""


class ClusterMismatch(DatabaseNotFound):
    """The cluster of {url} has release {cluster}, and the client library (libfdb_c) has release {library}: a library connects to clusters of its own minor release only. {cure}"""

    heals = False


class FleetRefused(FdbQueueError):
    """The worker processes cannot work: {reason}"""


class QueueFull(FdbQueueError, exit_code=REFUSED):
    """The queue {name!r} has no room for {wanted:~task}: it holds {current_size:~task}, its capacity is {capacity}. Nothing was put."""

    wanted: int = 1
    current_size: int
    capacity: int


class BatchOverCapacity(QueueFull):
    """A batch of {wanted} tasks never fits into the queue {name!r}: its capacity is {capacity}. Put at most {capacity} tasks in one call. Nothing was put."""


class FairQueueFull(QueueFull):
    """Queue overflow: the queue holds {current_size:~item}, and its capacity is {capacity}. Nothing was put."""


class QueueBusy(FdbQueueError, exit_code=REFUSED):
    """The queue {name!r} cannot be dropped: {reason}."""


class RepartitionNotCommitted(FdbQueueError):
    """The queue {name!r} was repartitioned earlier in this transaction. Commit it, then call the queue in
    another transaction."""


class RepartitionUnderWay(FdbQueueError, exit_code=REFUSED):
    """The queue {name!r} is being repartitioned from {before} to {partitions:~partition}. Repeat that command
    to finish it, then begin another."""


class UnknownKind(FdbQueueError, ValueError):
    """There is no kind of task queue named {kind!r}: there are {known}."""


class KindExists(FdbQueueError, ValueError):
    """A kind of task queue named {kind!r} is registered already."""


class UnsupportedOption(FdbQueueError, ValueError):
    """A queue of kind {kind!r} does not support {option}."""


class NotUnacked(FdbQueueError, KeyError):
    """{item!r} is not un-acked here: this proxy did not fetch it, has acked it, or has lost its lease, and the queue delivers it again. Nothing was changed."""

    __str__ = Exception.__str__  # KeyError's shows the message as a quoted key


class NothingToAck(FdbQueueError, ValueError):
    """task_done() called too many times"""


class TransactionOpen(FdbQueueError):
    """This thread is in a transaction of this proxy already: transactions of a proxy do not nest."""


class ProxyClosed(FdbQueueError):
    """This proxy of the queue {name!r} has been closed: connect() returns another."""


class OwnerReplaced(FdbQueueError):
    """The owner {owner!r} has opened the queue {name!r} again: the items fetched here are back at its front, and this object fetches no more."""


class UnknownSession(FdbQueueError, LookupError):
    """The session {session} has ended, or was overdue: open another."""


if not TYPE_CHECKING:  # a checker would take it for an empty list
    __all__ = public_errors(globals())
