"""The handle of a task queue: its names, and how its verbs reach a transaction."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar

from fdb.subspace_impl import Subspace

from fdbqueue import tasks as late
from fdbqueue.core import observing
from fdbqueue.core.arguments import checked_instance, writable
from fdbqueue.core.database import Database, as_database, is_transaction, run
from fdbqueue.core.handle import Handle
from fdbqueue.core.observing import Call
from fdbqueue.core.registry.definition import Definition
from fdbqueue.core.registry.registry import Registry
from fdbqueue.core.seam import AnySession, DatabaseOrTransaction
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session, own_session_of
from fdbqueue.core.task import Task
from fdbqueue.tasks.calls import TaskCalls, calls_of
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import as_given
from fdbqueue.tasks.records.keys import id_bytes
from fdbqueue.tasks.shape import shape_of
from fdbqueue.tasks.verbs import UNKNOWN, Target

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
        """Run the verb `name`. `task`: the task of a verb about one task. `may_be_lost(answer)`: true if a
        power cut may undo a verb given a database.
        """
        calls = self._calls(target)
        id_ = (id_bytes(task.id if isinstance(task, Task) else task)) if task else None
        if is_transaction(target):
            call = partial(calls.within, writable(target), body, id_)
        else:
            call = partial(calls.once, body, id_, may_be_lost)
        return self._told(target, name, call, task) if observing.observers else call()

    def _once_in_all(
        self, target: DatabaseOrTransaction, name: str, body: Callable[[Sequence[Change]], T]
    ) -> T:
        calls = self._calls(target)
        if is_transaction(target):
            call = partial(calls.all_within, writable(target), body)
        else:
            call = partial(calls.all_once, body)
        return self._told(target, name, call) if observing.observers else call()

    def _end(
        self, target: DatabaseOrTransaction, task: Task | str, verb: str, body: Callable[[Change], Task]
    ) -> Task:
        if not isinstance(task, Task):
            return self._once(target, verb, body, task)
        task._note_end(None, within=False)  # a verb that raises has ended nothing
        ended = self._once(target, verb, body, task)
        task._note_end(verb, is_transaction(target))
        return ended

    def _look(self, target: DatabaseOrTransaction, body: Callable[[Sequence[Change]], T]) -> T:
        """Look at all partitions. Given a database, sweep afterwards: the answer shows the state before."""
        found = self._see_all(target, body)
        if not is_transaction(target):
            late.looking.sweep_a_batch(as_database(target), self._calls(target).parts)
        return found

    def _see(self, target: DatabaseOrTransaction, body: Callable[[Change], T], id_: bytes | None = None) -> T:
        parts = self._calls(target).parts
        if id_ is None:
            return run(target, lambda tr: parts.zero.look(writable(tr), body, parts.plan))
        return run(target, lambda tr: parts.look(writable(tr), body, id_))

    def _see_all(self, target: DatabaseOrTransaction, body: Callable[[Sequence[Change]], T]) -> T:
        parts = self._calls(target).parts
        return run(target, lambda tr: parts.look_at_all(writable(tr), body))

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
        if isinstance(task, Task):
            holder = b"" if task.token else self._holder(tr, session)
            # Without a lease, the payload may have been edited since.
            return Target(id_bytes(task.id), task.token, holder, task.data if task.token else UNKNOWN)
        return Target(id_bytes(task), None, self._holder(tr, session))

    def _holder(self, tr: DatabaseOrTransaction, session: AnySession | None) -> bytes:
        if session is not None:
            return checked_instance("session", session, Session).id
        return own_session_of(self._of(tr), self._shape.root).id()
