"""PersistentQueue: a queue.Queue that survives crashes, and that processes and machines share.

It is made of the task life cycle. A proxy has the methods of queue.Queue, `ack`, and transactions, in the
name of one session.

    get             READY -> TAKEN, by the proxy's session: un-acked
    ack, task_done  TAKEN -> gone
    end of a proxy  TAKEN -> READY, in the old place: before all that has waited since

The first get opens the session, which is renewed in the background. It ends when the proxy is closed or
collected, when its thread ends, or `ttr` seconds after the death of its process; in a directory, also when a
queue is opened after that death. Then its un-acked items go back. The keeper polls for the end of the proxy
or its thread (Session.wanted), because a finalizer could not end a session.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import count
from queue import Empty, Full
from typing import Any, Self

from msgspec.structs import replace

from fdbqueue.core import limits, observing
from fdbqueue.core.arguments import checked_event, checked_span, checked_text, checked_timeout, is_whole
from fdbqueue.core.codec import checked_codec
from fdbqueue.core.database import Handle, as_database
from fdbqueue.core.errors import (
    InvalidArgument,
    NothingToAck,
    NotTaken,
    NotUnacked,
    ProxyClosed,
    TransactionOpen,
    UnknownSession,
)
from fdbqueue.core.observing import Call
from fdbqueue.core.registry import Registry, exists_already, of_kind
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import Stop
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.sessions.ending import end_the_gone
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.queues.unacked import Delivery, Owner, Stored, Unacked, Unit
from fdbqueue.tasks.calls import require_alone
from fdbqueue.tasks.creating import Asked, opened_or_created
from fdbqueue.tasks.options import Draft, Settings
from fdbqueue.tasks.shape import shape_of


@dataclass(frozen=True)
class Client:
    stored: Stored
    owner: Owner | None
    ttr_s: float
    root: Any


class Proxy(Handle):
    """The hold of one thread on a persistent queue. A context manager that closes it.

    Raises: ProxyClosed once it is closed; QueueDropped, DatabaseClosed; the engine's FDBError.
    """

    __slots__ = (
        "_client",
        "_closed",
        "_for_this_thread",
        "_opening",
        "_process_id",
        "_runtime",
        "_session",
        "_stored",
        "_unacked",
        "_units",
        "number",
    )

    _session: Session | None
    _units: dict[int, Unit]
    """The open transactions, by thread."""

    def __init__(self, client: Client, number: int, *, for_this_thread: bool) -> None:
        """Use PersistentQueue.connect()."""
        self.number = number
        self._client = client
        self._stored = client.stored
        self._runtime = client.stored.runtime
        self._for_this_thread = for_this_thread
        self._closed = False
        self._start_empty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _shown(self) -> dict[str, Any]:
        return {"name": self.name, "number": self.number, **self._stored.database._shown()}

    @property
    def name(self) -> str:
        return self._stored.shape.name

    @property
    def maxsize(self) -> int:
        """The bound of this opener. It may be changed; a waiting put notices within seconds."""
        return self._stored.maxsize

    @maxsize.setter
    def maxsize(self, maxsize: int) -> None:
        self._stored.maxsize = checked_maxsize(maxsize)

    @property
    def id(self) -> str | None:
        """The id of its session, in hexadecimal; None before its first get."""
        return None if self._session is None else self._session.id.hex()

    @property
    def unacked(self) -> list[Any]:
        """Its fetched and un-acked items, in the order of fetching."""
        self._look_around()
        return self._unacked.items()

    # As queue.Queue has it.

    def put(
        self, item: Any, block: bool = True, timeout: float | None = None, *, stop: Stop | None = None
    ) -> None:
        """Add an item at the end; when the call returns, the item is durable. Waits for room if there is a
        maxsize.

        When `stop`, an event, is set, the call raises WaitStopped and has put nothing.
        Writes: the item, exactly once.
        Conflicts: none; in a bounded queue near its bound, other puts.
        Raises: queue.Full as queue.Queue does; InvalidArgument (a ValueError) for a negative timeout;
        TypeError for an item that the codec cannot carry; PayloadTooLarge, WaitStopped.
        """
        until = self._until(block, timeout, stop)
        unit = self._look_around()
        draft = self._stored.draft(item)
        if observing.observers:
            with self._call("put", within=unit is not None, waits=block) as call:
                done = self._put(unit, replace(draft, trace=call.trace), until, stop)
                call.count = int(done)
        else:
            done = self._put(unit, draft, until, stop)
        if not done:
            raise Full

    def put_nowait(self, item: Any) -> None:
        """put(item, False)"""
        self.put(item, False)

    def get(self, block: bool = True, timeout: float | None = None, *, stop: Stop | None = None) -> Any:
        """Fetch the first item: from now on it is un-acked here, and no other proxy gets it.

        Overdue sessions are ended before queue.Empty. The call waits in the line, on a watch. In a
        transaction with puts, a get without a timeout does not wait: it might wait for its own puts. When
        `stop`, an event, is set, the call raises WaitStopped, and an item that came for it has gone back.
        Conflicts: other takers of the same item.
        Raises: queue.Empty as queue.Queue does; InvalidArgument (a ValueError) for a negative timeout;
        OwnerReplaced, WaitStopped.
        """
        until = self._until(block, timeout, stop)
        self._stored.shape.codec.require()
        unit = self._look_around()
        if unit is not None and unit.puts and until is None:
            until = self._runtime.monotonic()
        if observing.observers:
            with self._call("get", waits=block) as call:
                call.count = 0  # also if it raises
                task = self._fetch(until, stop)
                call.tasks = [] if task is None else [task]
                call.count = len(call.tasks)
        else:
            task = self._fetch(until, stop)
        if task is None:
            raise Empty
        delivery = self._unacked.add(task, self._runtime.thread_id())
        if unit is not None:
            unit.fetched.append(delivery)
        return delivery.item

    def get_nowait(self) -> Any:
        """get(False)"""
        return self.get(False)

    def qsize(self) -> int:
        """The number of items that wait, without un-acked ones.

        Overdue sessions are ended before the answer is zero: items that a dead process had fetched wait
        again.
        Conflicts: none.
        """
        self._look_around()
        self._stored.keeper.end_unwanted()
        return self._stored.waiting()

    def empty(self) -> bool:
        """qsize() == 0"""
        return self.qsize() == 0

    def full(self) -> bool:
        """0 < maxsize <= qsize()"""
        self._look_around()
        return 0 < self.maxsize <= self.qsize()

    def task_done(self) -> None:
        """Ack the oldest un-acked item that this thread has fetched; if it has none, the oldest of the
        others.

        Raises: NothingToAck (a ValueError); the errors of `ack`.
        """
        unit = self._look_around()
        delivery = self._unacked.pick_oldest(self._runtime.thread_id())
        if delivery is None:
            raise NothingToAck
        self._finish(unit, delivery)

    def join(self, *, stop: Stop | None = None) -> None:
        """Wait until every item ever put has been acked. An item that has come back waits again.

        Raises: WaitStopped as soon as `stop`, an event, is set.
        """
        checked_event("stop", stop)
        self._look_around()
        self._stored.wait_until_finished(stop)

    # Beyond queue.Queue.

    def ack(self, item: Any) -> None:
        """Remove `item`, which get has returned: the same object, or an equal one.

        Conflicts: none.
        Raises: NotUnacked (a KeyError) if the item is not un-acked here: not fetched by this proxy, acked
        already, or lost because its session was over. Then nothing changes.
        """
        unit = self._look_around()
        self._finish(unit, self._unacked.pick(item))

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """Commit the gets, puts and acks of this thread inside the block together, at its end.

        After an exception nothing has happened: fetched items are back in their old places, and nothing was
        put or acked. Until the end, fetched items are held and puts are invisible, and the block may take any
        time. In a child that was forked inside, the end does nothing: the transaction is the parent's.
        Raises: TransactionOpen inside another transaction. At the end: NotUnacked if the session was over
        meanwhile; queue.Full if there was no room within the timeouts of the puts; WaitStopped if the `stop`
        of a put was set before there was room; TooMuchForOneTransaction for more than limits.BATCH_ITEMS_MAX
        items. Then nothing has happened.
        """
        if self._look_around() is not None:
            raise TransactionOpen
        unit = self._units[self._runtime.thread_id()] = Unit()
        process_id = self._process_id
        try:
            yield self
            if process_id == self._runtime.process_id():
                self._commit(unit)
        except BaseException:
            if process_id == self._runtime.process_id() and not unit.done:
                self._undo(unit)
            raise
        finally:
            self._units.pop(self._runtime.thread_id(), None)

    def close(self) -> None:
        """End the proxy. Its un-acked items go back to the front of the queue at once. A second call does
        nothing.
        """
        self._forget_what_a_parent_had()
        session, self._session = self._session, None
        self._closed = True
        self._unacked.clear()
        if session is not None and not session.lost:  # else it has been ended, by the database's close too
            session.end()
            if self._client.owner is not None:
                self._client.owner.strike(session)

    # How it is done.

    def _start_empty(self) -> None:
        self._session = None
        self._process_id = self._runtime.process_id()
        self._opening = self._runtime.lock()
        self._unacked = Unacked(self._runtime.lock())
        self._units = {}

    def _forget_what_a_parent_had(self) -> None:
        """After a fork: session, un-acked items and held locks are the parent's."""
        if self._process_id != self._runtime.process_id():
            self._start_empty()

    def _look_around(self) -> Unit | None:
        """The open transaction of this thread, or None. Every call begins here. Raises: ProxyClosed."""
        self._forget_what_a_parent_had()
        if self._closed:
            raise ProxyClosed(name=self.name)
        if self._session is not None and self._session.lost:
            self._unacked.clear()  # it has gone back to the queue
        return self._units.get(self._runtime.thread_id())

    def _until(self, block: bool, timeout: float | None, stop: Stop | None) -> float | None:
        """The time limit, as runtime.monotonic(); None without one. Raises: InvalidArgument."""
        if stop is not None:
            checked_event("stop", stop)
        now = self._runtime.monotonic()
        if not block:
            return now
        if timeout is None:
            return None
        return now + checked_timeout(timeout)

    def _call(self, name: str, *, within: bool = False, waits: bool = False, task_id: str = "") -> Call:
        call = Call(self._runtime, name, self.name, task_id, within=within, waits=waits)
        call.stores_trace = name == "put"
        return call

    def _put(self, unit: Unit | None, draft: Draft, until: float | None, stop: Stop | None) -> bool:
        if unit is None:
            return self._stored.put(draft, until, stop)
        unit.put(draft, until, stop)
        return True

    def _fetch(self, until: float | None, stop: Stop | None) -> Task | None:
        while True:
            session = self._live_session()
            try:
                return self._take(session, until, stop)
            except UnknownSession:
                session.lost = True

    def _take(self, session: Session, until: float | None, stop: Stop | None) -> Task | None:
        self._stored.keeper.end_unwanted()  # their items come first
        left = limits.SPAN_MAX_S if until is None else until - self._runtime.monotonic()
        found = self._stored.calls.take(session, 1, min(left, limits.SPAN_MAX_S), stop)
        return found[0] if found else None

    def _live_session(self) -> Session:
        with self._opening:
            if self._session is None or self._session.lost:
                self._unacked.clear()
                self._session = self._open_session()
            return self._session

    def _open_session(self) -> Session:
        alive = self._runtime.thread_is_alive() if self._for_this_thread else lambda: True
        there = weakref.ref(self)
        client = self._client
        session = Session(
            self._stored.database,
            ttr=client.ttr_s,
            wanted=lambda: there() is not None and alive(),
            root=client.root,
        )
        if client.owner is not None:
            try:
                client.owner.enrol(session)
            except BaseException:
                session.end()
                raise
        return session

    def _finish(self, unit: Unit | None, delivery: Delivery) -> None:
        within, id_ = unit is not None, delivery.task.id
        with self._call("ack", within=within, task_id=id_) if observing.observers else nullcontext():
            self._ack(unit, delivery)

    def _ack(self, unit: Unit | None, delivery: Delivery) -> None:
        if unit is not None:
            unit.acked.append(delivery)
            return
        alone = Unit(acked=[delivery])
        try:
            self._do(alone)
        except NotUnacked:
            raise
        except BaseException:
            if not alone.done:
                self._unacked.put_back([delivery])
            raise

    def _commit(self, unit: Unit) -> None:
        self._look_around()
        if (unit.fetched or unit.acked or unit.puts) and not self._do(unit):
            raise Full

    def _do(self, unit: Unit) -> bool:
        def keep(done: bool) -> None:
            unit.done = done

        try:
            return self._stored.do(unit.work(), unit.until, unit.stops, keep)
        except NotTaken as late:
            lost = unit.lose(late)
            self._unacked.discard([lost])
            raise NotUnacked(item=lost.item) from None

    def _undo(self, unit: Unit) -> None:
        # First: if the queue cannot be reached, items that have not gone back are still un-acked here.
        self._unacked.put_back(unit.acked)
        self._stored.release([delivery.task for delivery in unit.fetched])
        self._unacked.discard(unit.fetched)


def checked_maxsize(maxsize: Any) -> int:
    if not is_whole(maxsize):
        raise InvalidArgument(name="maxsize", wanted="a whole number", got=maxsize)
    return int(maxsize)


KIND = "fifo"


class PersistentQueue(KeepsAside, Proxy):
    """A first-in-first-out queue with the methods of queue.Queue, over the fifo task queue of that name.

    It is its own first proxy, shared by all threads that use it. `connect()` makes a proxy for one thread.
    """

    __slots__ = ("_aside", "_ask_exists", "_numbers", "_proxies", "_receipts")

    def __init__(
        self,
        db: AnyDatabase,
        name: str,
        maxsize: int = 0,
        owner: str | None = None,
        *,
        codec: str | None = None,
        type: Any = None,
        ttr: float | None = None,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """Open the queue, or create it. `maxsize` bounds the items that wait; zero or less is no bound.

        `owner` names this client. The un-acked items of the client before it in this name are at the front of
        the queue when the call returns. If that client still runs, it fetches nothing more. `ttr`: seconds
        after the death of the process until its items come back (inf: never). In a directory, those of dead
        processes are back when this call returns. `codec` is chosen when the queue is created: "json" (the
        default), "bytes", "msgpack", or a name given to `register_codec`.
        `type`: type of the items of this handle; it is not stored.
        Raises: InvalidArgument, UnknownCodec; QueueKindMismatch for the name of another kind; QueueExists for
        another codec, or for a temporary queue of another session that lives; UnsupportedOption for a queue
        with partitions.
        """
        checked_maxsize(maxsize)
        if owner is not None:
            owner = checked_text("owner", owner, limits.QUEUE_NAME_BYTES_MAX)
        database, registry = as_database(db), Registry(root)
        ttr_s = database.session_ttr_s if ttr is None else checked_span("ttr", ttr)
        settings = Settings(codec=checked_codec("json" if codec is None else codec, type))
        found = of_kind(opened_or_created(database, registry, Asked(name, KIND, settings)), KIND)
        shape = shape_of(registry, found, type)
        require_alone(shape)
        keeper_of(database, shape.root).start()
        end_the_gone(database, shape.root)
        if codec not in (None, shape.settings.codec):
            raise exists_already(name, KIND, found.options, {"codec": codec})
        self._aside, self._ask_exists, self._receipts = shape.aside, shape.exists, shape.root
        claimed = None if owner is None else Owner(database, shape, owner)
        super().__init__(
            Client(Stored(database, shape, maxsize), claimed, ttr_s, root), 0, for_this_thread=False
        )
        self._numbers = count(1)
        self._proxies: weakref.WeakValueDictionary[int, Proxy] = weakref.WeakValueDictionary()

    def connect(self) -> Proxy:
        """A proxy for the calling thread. When the thread ends, its un-acked items go back to the queue.

        Any number of threads may call this at once.
        Raises: OwnerReplaced, ProxyClosed.
        """
        self._look_around()
        proxy = Proxy(self._client, next(self._numbers), for_this_thread=True)
        proxy._live_session()
        self._proxies[proxy.number] = proxy
        return proxy

    def close(self) -> None:
        """Close the queue and all its proxies. Un-acked items go back to its front."""
        for proxy in [known() for known in self._proxies.valuerefs()]:
            if proxy is not None:
                proxy.close()
        super().close()
