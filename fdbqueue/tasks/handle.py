"""The handle of a task queue: its names, and how its verbs reach a transaction."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue import tasks as late
from fdbqueue.core import observing
from fdbqueue.core.arguments import checked_instance, writable
from fdbqueue.core.database import Database, Handle, as_database, is_transaction, run
from fdbqueue.core.observing import Call
from fdbqueue.core.once import run_in
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.seam import AnySession, DatabaseOrTransaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session, own_session_of
from fdbqueue.core.task import Task
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.options import as_given
from fdbqueue.tasks.records.keys import id_bytes, id_of
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.verbs import Target

T = TypeVar("T")


class TaskHandle(Handle):
    """Names and options of a task queue, and the ways of its verbs into a transaction."""

    __slots__ = ("_aside", "_ask_exists", "_database", "_receipts", "_shape")

    def __init__(
        self, target: DatabaseOrTransaction, registry: Registry, definition: Definition, type: Any = None
    ) -> None:
        """Use `TaskQueue.create` or `TaskQueue.open`.

        Raises: UnknownKind, InvalidArgument for the type.
        """
        checked_instance("registry", registry, Registry)
        self._shape = shape_of(registry, checked_instance("definition", definition, Definition), type)
        self._aside, self._ask_exists = self._shape.aside, self._shape.exists
        self._receipts = self._shape.root
        # Sessions and callbacks belong to a database, and a transaction carries none.
        self._database = as_database(target.db if is_transaction(target) else target)
        # No thread for a caller's transaction: its database may be closed without a sign to this process.
        if not is_transaction(target):
            keeper_of(self._database, self._shape.root).start()

    @property
    def name(self) -> str:
        return self._shape.name

    @property
    def kind(self) -> str:
        return self._shape.kind.name

    def _shown(self) -> dict[str, Any]:
        return {"name": self.name, "kind": self.kind, **self._database._shown()}

    @property
    def contents(self) -> Subspace:
        """The subspace that holds everything of the queue."""
        return self._shape.registry.contents(self._shape.definition)

    @property
    def options(self) -> Mapping[str, Any]:
        """The options that the queue was created with."""
        # All handles of a process share the definition that it has met last.
        current = calls_of(self._database, self._shape).shape.current
        return as_given((self._shape if current is None else current).definition.options)

    def require_codec(self) -> None:
        """Raises: UnknownCodec if this process has not registered the codec of the queue."""
        self._shape.codec.require()

    def _on(self, db: Database) -> Self:
        """The same handle for calls within transactions of another database object."""
        twin = self._twin()
        twin._database = db
        return twin

    def _once(
        self,
        target: DatabaseOrTransaction,
        name: str,
        body: Callable[[Change], T],
        task: Task | str = "",
        may_be_lost: Callable[[T], bool] | None = None,
    ) -> T:
        """Run the verb `name`, about the queue or about `task`. `may_be_lost(answer)`: as in `run_once`."""
        within = partial(self._calls(target).parts.within, verb=body, id_=id_of(task) if task else None)
        call = partial(run_in, target, self._receipts, within, may_be_lost=may_be_lost)
        return self._told(target, name, call, task) if observing.observers else call()

    def _once_in_all(
        self, target: DatabaseOrTransaction, name: str, body: Callable[[Sequence[Change]], T]
    ) -> T:
        """Run the verb `name` about all partitions."""
        within = partial(self._calls(target).parts.all_within, verb=body)
        call = partial(run_in, target, self._receipts, within)
        return self._told(target, name, call) if observing.observers else call()

    def _end(
        self, target: DatabaseOrTransaction, name: str, body: Callable[[Change], Task], task: Task | str
    ) -> Task:
        """As `_once`, for a verb that ends the lease of the task."""
        if isinstance(task, Task):
            task._note_end(None, within=False)  # a verb that raises has ended nothing
        ended = self._once(target, name, body, task)
        if isinstance(task, Task):
            task._note_end(name, is_transaction(target))
        return ended

    def _see(self, target: DatabaseOrTransaction, body: Callable[[Change], T], id_: bytes | None = None) -> T:
        """Look at the task `id_`, or at the queue."""
        parts = self._calls(target).parts
        return run(target, lambda tr: parts.look(writable(tr), body, id_))

    def _see_all(
        self,
        target: DatabaseOrTransaction,
        body: Callable[[Sequence[Change]], T],
        *,
        sweeps: bool = False,
    ) -> T:
        """Look at all partitions. `sweeps`: a call given a database sweeps a batch behind its answer."""
        parts = self._calls(target).parts
        found = run(target, lambda tr: parts.look_at_all(writable(tr), body))
        if sweeps and not is_transaction(target):
            late.looking.sweep_a_batch(as_database(target), parts)
        return found

    def _calls(self, target: DatabaseOrTransaction) -> TaskCalls:
        database = self._database if target is self._database else self._of(target)
        found: TaskCalls | None = database.known(self._shape.service)
        return calls_of(database, self._shape) if found is None else found

    def _told(
        self, target: DatabaseOrTransaction, name: str, call: Callable[[], T], task: Task | str = ""
    ) -> T:
        with self._observed(target, name, task=task) as observed:
            answer = call()
            if isinstance(answer, Task):
                observed.tasks = [answer]
            return answer

    def _observed(
        self, target: DatabaseOrTransaction, name: str, *, task: Task | str = "", **facts: Any
    ) -> Call:
        runtime, id_ = self._of(target).runtime, task.id if isinstance(task, Task) else task
        return Call(runtime, name, self.name, id_, within=is_transaction(target), **facts)

    def _of(self, target: DatabaseOrTransaction) -> Database:
        if not is_transaction(target):
            return as_database(target)
        # A plan, a session and a callback belong to one database. Several may share the engine of `target`:
        # among them that of the handle comes first.
        return self._database if target.db == self._database.engine else as_database(target.db)

    def _own_session(self, target: DatabaseOrTransaction) -> Session:
        return own_session_of(self._of(target), self._shape.root).get()

    def _target(self, tr: DatabaseOrTransaction, task: Task | str, session: AnySession | None) -> Target:
        """The task of a verb. Without a lease, its payload may have been edited since."""
        if isinstance(task, Task) and task.token:
            return Target(id_bytes(task.id), task.token, data=task.data)
        if session is None:
            return Target(id_of(task), session=own_session_of(self._of(tr), self._shape.root).id())
        return Target(id_of(task), session=checked_instance("session", session, Session).id)
