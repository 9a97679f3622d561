"""The kombu transport: one connection is one session, and its leases last as long as a thread renews it."""

from contextlib import suppress
from functools import partial
from typing import Any

from celery.app.backends import BACKEND_ALIASES
from kombu.exceptions import ChannelError
from kombu.transport import TRANSPORT_ALIASES, virtual

from fdbqueue.core.database import Database
from fdbqueue.core.errors import QueueNotFound
from fdbqueue.core.runtime import Event
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task
from fdbqueue.core.version import __version__
from fdbqueue.integrations.celery.channel import WAIT_S, Found, Queues, Tap, Want, Wants
from fdbqueue.integrations.celery.channel import Channel as TaskChannel
from fdbqueue.integrations.celery.databases import (
    SCHEME,
    SCHEMES,
    BrokerLost,
    answering,
    require_threads,
    told_to_kombu,
    url_of,
)
from fdbqueue.integrations.common import passing_what_does_not_heal
from fdbqueue.tasks.intake import Intake


def register() -> None:
    """Make the schemes of URLs known to kombu, and to Celery.

    An installed package tells Celery its result backend by an entry point. kombu has none for transports.
    """
    BACKEND_ALIASES[SCHEME] = "fdbqueue.integrations.celery.backend:Backend"
    for scheme in SCHEMES:
        TRANSPORT_ALIASES[scheme] = "fdbqueue.integrations.celery.transport:Transport"


class Transport(virtual.Transport):
    Channel = TaskChannel
    can_parse_url = True
    driver_type = driver_name = SCHEME
    connection_errors = (BrokerLost,)
    channel_errors = (ChannelError,)
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    database: Database
    queues: Queues

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._session: Session | None = None
        self._taps: dict[TaskChannel, Tap] = {}
        self._loop: Any = None
        self._process_id: int | None = None
        self._stop: Event | None = None

    def driver_version(self) -> str:
        return __version__

    @property
    def is_of_this_process(self) -> bool:
        """False in a forked child, where nothing of this connection may be ended."""
        return self._process_id is not None and self._process_id == self.database.runtime.process_id()

    @property
    def session(self) -> Session:
        """The session of this connection, opened at its first use."""
        if self._session is None:
            client: Any = self.client
            ttr_s = client.transport_options.get("session_ttr")
            with told_to_kombu():
                self._session = Session(self.database, ttr=ttr_s)
        return self._session

    # The connection.

    def establish_connection(self) -> Any:
        require_threads()
        with told_to_kombu():
            self.database = answering(url_of(self._address()))
        self.queues = Queues(self.database)
        self._intake = Intake[Want](self.database.runtime, {})
        self._process_id = self.database.runtime.process_id()
        return super().establish_connection()

    def _address(self) -> str:
        """The address of the broker. kombu has parsed that of an alternative broker, and no other one."""
        client: Any = self.client
        if "://" in (client.hostname or ""):
            return str(client.hostname)
        port = "" if client.port is None else f":{client.port}"
        return f"{client.transport_cls}://{client.hostname or ''}{port}/{client.virtual_host or ''}"

    def close_connection(self, connection: Any) -> None:
        ours = self.is_of_this_process
        super().close_connection(connection)
        session, self._session, self._loop = self._session, None, None
        if ours and session is not None:
            with told_to_kombu(), passing_what_does_not_heal():
                session.end()

    # Consuming without an event loop.

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:  # noqa: ARG002
        """Deliver all messages that come at once, of any queue. Raises TimeoutError if none does."""
        runtime = self.database.runtime
        until = None if timeout is None else runtime.monotonic() + timeout
        while True:
            left = WAIT_S if until is None else until - runtime.monotonic()
            if self._drain(min(WAIT_S, left)):
                return
            if until is not None and runtime.monotonic() >= until:
                raise TimeoutError

    def _drain(self, timeout_s: float) -> bool:
        stop = self._stop = self.database.runtime.event()
        with told_to_kombu():
            wants = {want: most for channel in list(self.channels) for want, most in channel.wants()}
            if not wants:  # until another thread settles a message, or consumes
                stop.wait(max(0.0, timeout_s))
                return False
            taken = self._take(self._intake, wants, timeout_s, stop)
            taken = [found for found in taken if found.want.channel.receive(found)]
        for one in taken:
            one.want.channel.deliver(one)
        return bool(taken)

    def _take(self, intake: Intake[Want], wants: Wants, timeout_s: float, stop: Event) -> list[Found]:
        """`intake`: that of the calling thread."""
        try:
            return [Found(*each) for each in intake.take(self._take_from, wants, timeout_s, stop)]
        except QueueNotFound:  # dropped by another process: the next look makes it again
            self.queues.forget(*(want.name for want in wants))
            return []

    def _take_from(self, want: Want, count: int, timeout_s: float, stop: Event) -> list[Task]:
        overtake = want.queue._shape.overtake_of()
        return want.queue.take_many(
            self.database, count, timeout_s, session=self.session, stop=stop, overtake=overtake
        )

    def take_one(self, channel: TaskChannel, queue: str) -> Found | None:
        want = Want(channel, queue, self.queues.get(queue))
        found = self._take(self._intake, {want: 1}, 0, self.database.runtime.event())
        return found[0] if found else None

    # Consuming in an event loop.

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:  # noqa: ARG002
        """Have the loop woken by messages, which threads take meanwhile."""
        self._loop = loop
        for channel in list(self.channels):
            self.end_tap(channel)
            self.consumers_changed(channel)

    def _draw(self, tap: Tap) -> None:
        for found in tap.drawn():
            found.want.channel.deliver(found)

    def end_tap(self, channel: TaskChannel) -> None:
        """Stop the takes of a channel. Messages that it has not delivered go back."""
        tap = self._taps.pop(channel, None)
        if tap is None or not self.is_of_this_process:
            return
        with suppress(ValueError, KeyError, AttributeError):  # the loop may be closed already
            self._loop.remove_reader(tap.bell)
        for found in tap.end():
            channel.qos.give_back(channel.tag(found))

    def consumers_changed(self, channel: TaskChannel) -> None:
        if channel in self._taps:
            self._taps[channel].changed()
        elif self._loop is not None and channel.consumes and self.is_of_this_process:
            runtime = self.database.runtime
            take = partial(self._take, Intake(runtime, {}))
            tap = self._taps[channel] = Tap(runtime, take, lambda: dict(channel.wants()), channel.receive)
            self._loop.add_reader(tap.bell, self._draw, tap)
        if self._stop is not None:
            self._stop.set()

    def freed(self, channel: TaskChannel) -> None:
        if channel in self._taps:
            self._taps[channel].freed()
        if self._stop is not None:
            self._stop.set()
