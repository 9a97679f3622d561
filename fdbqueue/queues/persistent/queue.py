"""PersistentQueue: a queue.Queue that survives crashes, and that processes and machines share."""

import weakref
from itertools import count
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_span, checked_text
from fdbqueue.core.codec import checked_codec
from fdbqueue.core.database import as_database
from fdbqueue.core.registry import Registry, exists_already, of_kind
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.sessions.ending import end_the_gone
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.unreadable import KeepsAside
from fdbqueue.queues.persistent.proxy import Client, Proxy, checked_maxsize
from fdbqueue.queues.persistent.stored import Stored
from fdbqueue.queues.persistent.unacked import Owner
from fdbqueue.tasks.calls import require_alone
from fdbqueue.tasks.creating import Asked, opened_or_created
from fdbqueue.tasks.options import Settings
from fdbqueue.tasks.shape import shape_of

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
