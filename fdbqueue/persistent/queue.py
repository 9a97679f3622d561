"""PersistentQueue: queue.Queue that survives crashes and is shared by processes and machines."""

import weakref
from itertools import count
from typing import Any

from fdbqueue import limits
from fdbqueue.codec import codec_named
from fdbqueue.database import as_database
from fdbqueue.errors import InvalidArgument
from fdbqueue.persistent.owners import Owner
from fdbqueue.persistent.proxy import Client, Proxy, checked_maxsize
from fdbqueue.persistent.stored import Stored
from fdbqueue.registry import Registry, exists_already
from fdbqueue.root_keys import DEFAULT_ROOT
from fdbqueue.tasks.kinds import Settings, is_number
from fdbqueue.tasks.shape import Shape

KIND = "fifo"


class PersistentQueue(Proxy):
    """A first-in-first-out queue with the methods of queue.Queue, over the fifo task queue of that name.

    It is its own first proxy, for all threads that use it; `connect()` gives a thread one of its own.
    """

    def __init__(
        self,
        db: Any,
        name: str,
        maxsize: int = 0,
        owner: str | None = None,
        *,
        codec: str | None = None,
        ttr: float = limits.SESSION_TTR_S,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """Open the queue, or create it. `maxsize` bounds the items that wait; zero or less is no bound.

        `owner` names this client: what the last one of this name had not acked is at the front of the queue
        when this returns, even if it still runs, and it fetches nothing more. `ttr`: so many seconds after
        the death of the process its items come back. `codec` ("json", "bytes", "msgpack") is decided when the
        queue is created, "json" if not given. Raises InvalidArgument, UnknownCodec, QueueKindMismatch if the
        name is that of something else, QueueExists for another codec.
        """
        checked_maxsize(maxsize)
        if not is_number(ttr) or not 0 < ttr < limits.SPAN_MAX_S:
            raise InvalidArgument(name="ttr", wanted="a positive number of seconds", got=ttr)
        database, registry = as_database(db), Registry(root)
        options = Settings(codec=codec_named(codec or "json").name).to_options()
        found = registry.find_or_create(database, name, KIND, options)
        shape = Shape(registry, found)
        if codec not in (None, shape.settings.codec):
            raise exists_already(name, found.kind, found.options, KIND, options)
        claimed = None if owner is None else Owner(database, shape, owner)
        super().__init__(
            Client(Stored(database, shape, maxsize), claimed, ttr, root), 0, for_this_thread=False
        )
        self._numbers = count(1)
        self._proxies: weakref.WeakValueDictionary[int, Proxy] = weakref.WeakValueDictionary()

    def connect(self) -> Proxy:
        """A proxy for the calling thread: when that ends, what it has not acked goes back to the queue.

        Safe to call from any number of threads. Raises OwnerReplaced, ProxyClosed.
        """
        self._look_around()
        proxy = Proxy(self._client, next(self._numbers), for_this_thread=True)
        proxy._live_session()
        self._proxies[proxy.number] = proxy
        return proxy

    def close(self) -> None:
        """Close the queue and all its proxies. What is un-acked goes back to its front."""
        for proxy in [known() for known in self._proxies.valuerefs()]:
            if proxy is not None:
                proxy.close()
        super().close()
