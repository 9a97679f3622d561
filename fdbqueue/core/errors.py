"""The public errors: one root; data as attributes; the docstring is the message. docs/errors.md lists them.

The root, `FdbQueueError`, makes a message of a class, its docstring and its data. Errors of single features
come last.

The errors of the engines (`fdb.FDBError`, `fdbqueue.embedded.FDBError`) are *not* below this root: a body
that catches `FdbQueueError` would swallow a retryable error, and commit half of its work.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from fdbqueue.core.visible import counted, shortened, shown, told, visible

MESSAGE_LENGTH_MAX = 900
NOUN = "~"
"""In the docstring of an error, `{number:~task}` is 1 task or 2 tasks."""


REFUSED, ERROR = 1, 2


class FdbQueueError(Exception):
    """fdbqueue failed."""

    heals: ClassVar[bool] = True
    """False if each later call on the database raises this error, until another process takes over."""
    exit_code: ClassVar[int] = ERROR
    """Status with which the command line ends: REFUSED if the call was right, and the state is not."""

    def __init_subclass__(cls, exit_code: int | None = None) -> None:
        if exit_code is not None:
            cls.exit_code = exit_code

    def __init__(self, message: str | None = None, **data: Any) -> None:
        for name, value in data.items():
            setattr(self, name, value)
        if message is None:
            message = _message_of(self, {name: _Shown(data[name]) for name in data})
        short = shortened(message, MESSAGE_LENGTH_MAX)
        super().__init__(shortened(visible(short, keep="\n"), MESSAGE_LENGTH_MAX))


def _message_of(error: FdbQueueError, data: dict[str, "_Shown"]) -> str:
    """With `python -OO` there are no docstrings: the class and the data have to do."""
    if type(error).__doc__ is None:
        told_data = ", ".join(f"{name}={value!r}" for name, value in data.items())
        return f"{type(error).__name__}({told_data})"
    return (error.__doc__ or "").strip().format(**data)


def heals(error: BaseException) -> bool:
    """False if the error ends the work of this process on its database (`FdbQueueError.heals`)."""
    return not isinstance(error, FdbQueueError) or error.heals


class _Shown:
    """A value in a message: short, and without control characters."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return shown(self._value)

    def __format__(self, spec: str) -> str:
        if spec.startswith(NOUN):
            return counted(self._value, spec.removeprefix(NOUN))
        return format(self._value, spec) if spec else told(self._value)


def public_errors(names: Mapping[str, Any]) -> list[str]:
    """The names of a module that are errors of this tree."""
    return sorted(
        name for name, value in names.items() if isinstance(value, type) and issubclass(value, FdbQueueError)
    )


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

    name: str


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


class NotHandedOff(FdbQueueError, exit_code=REFUSED):
    """Task {id} is {state}, not handed off: nothing was changed."""


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


class FunctionNotFound(FdbQueueError, LookupError):
    """No function named {name!r} here: Tasks({queue!r}) has {names}."""


class DatabaseNotFound(FdbQueueError):
    """There is no database at {url}, or it does not answer."""


class ClusterMismatch(DatabaseNotFound):
    """The cluster of {url} has release {cluster}, and the client library (libfdb_c) has release {library}: a library connects to clusters of its own minor release only. {cure}"""

    heals = False


class FleetRefused(FdbQueueError):
    """The worker processes cannot work: {reason}"""


class QueueFull(FdbQueueError, exit_code=REFUSED):
    """The queue {name!r} has no room for {wanted:~task}: it holds {current_size:~task}, its capacity is {capacity}. Nothing was put.{cure}"""

    wanted: int = 1
    current_size: int
    capacity: int
    cure: str = ""
    """Empty, unless most of the tasks are buried."""


class BatchOverCapacity(QueueFull):
    """A batch of {wanted} tasks never fits into the queue {name!r}: its capacity is {capacity}. Put at most {capacity} tasks in one call. Nothing was put."""


class FairQueueFull(QueueFull):
    """Queue overflow: the queue holds {current_size:~item}, and its capacity is {capacity}. Nothing was put."""


class TrashFull(FdbQueueError, exit_code=REFUSED):
    """The trash of the queue {name!r} takes at most {most} of one purge. Remove fewer, or with --no-trash for good. The tasks that are left are in the queue."""

    most: str


class QueueBusy(FdbQueueError, exit_code=REFUSED):
    """The queue {name!r} cannot be dropped: {reason}."""


class RepartitionNotCommitted(FdbQueueError):
    """The queue {name!r} was repartitioned earlier in this transaction. Commit it, then call the queue in
    another transaction."""


class AlterNotCommitted(FdbQueueError):
    """Options of the queue {name!r} were changed earlier in this transaction. Commit it, then call the queue
    in another transaction."""


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


# Element queues, imports and exports.


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


class ExportInUse(FdbQueueError, exit_code=REFUSED):
    """Another process writes the export {path}: wait until it has ended."""


class ExportRefused(FdbQueueError, exit_code=REFUSED):
    """The queue {name!r} is not exported: {reason}"""


class ImportUnfinished(FdbQueueError):
    """The queue {name!r} is not whole yet: run `fdbqueue import file` with its export again, or drop the queue."""


# Schedules.


class ScheduleNotFound(FdbQueueError, LookupError):
    """There is no schedule named {name!r}."""

    name: str


class ScheduleExists(FdbQueueError, exit_code=REFUSED):
    """A schedule named {name!r} exists already: change it, delete it, or create with if_exists="keep" or if_exists="change"."""


class ScheduleUnfit(FdbQueueError, ValueError, exit_code=REFUSED):
    """The schedule {name!r} does not fit the queue {queue!r}: {reason}. Change the schedule."""


class ScheduleUnreadable(FdbQueueError, ValueError):
    """The schedule {name!r} cannot be read ({reason}): a newer release wrote it, or it is damaged. Delete and create it again, or use that release."""


# Stored data.


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


class QueueExists(FdbQueueError, exit_code=REFUSED):
    """A queue named {name!r} exists already, {compared}.{cure}"""

    name: str
    kind: str
    options: Mapping[str, Any]
    differing: Mapping[str, tuple[Any, Any]]
    cure: str


# Frameworks that use fdbqueue.


class UnknownBrokerUrl(FdbQueueError, ValueError):
    """{url!r} names no database: use "fdbqueue+embedded:///PATH", also with "?durability=soon" or "?durability=process", "fdbqueue+fdb:///CLUSTER_FILE", or "fdbqueue+fdb://" for the default cluster file."""


class ClusterForked(FdbQueueError, RuntimeError):
    """This process was forked from one that had opened a cluster, and FoundationDB's client library does not survive a fork ({url}): open the cluster after the fork, or start the process afresh, as a worker of Celery does with worker_pool_start_method = "spawn"."""

    heals = False


class PoolRefused(FdbQueueError, RuntimeError):
    """The {pool} pool of Celery cannot be used with fdbqueue, as leases are renewed in threads: use the pools prefork, threads or solo."""


if not TYPE_CHECKING:  # a checker would take it for an empty list
    __all__ = public_errors(globals())
