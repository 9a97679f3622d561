"""A connection: the bytes of a client become commands, one after the other, and each has its reply.

While a command waits for its answer, the client may send more, up to READ_AHEAD_BYTES; then the server reads
no further. A client that does not read its replies gets no further command carried out. So a connection holds
at most the body of one job, one reply, and the bytes that it is ahead.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd import figures, protocol
from fdbqueue.integrations.beanstalkd.batches import Kind
from fdbqueue.integrations.beanstalkd.jobs import Attempt, Held, New, Taken
from fdbqueue.integrations.beanstalkd.protocol import NOT_FOUND, Command
from fdbqueue.integrations.beanstalkd.server import DEFAULT, Server, refusal

READ_AHEAD_BYTES = 65_536
WATCHED_MAX = 1_000
SAFETY_MARGIN_S = 1.0
"""The last part of a lease, in which its connection is not made to wait for another job."""


class Connection(asyncio.StreamReaderProtocol):
    def __init__(self, server: Server) -> None:
        self._input = asyncio.StreamReader(READ_AHEAD_BYTES // 2)  # it reads twice as much
        super().__init__(self._input)
        self._server, self._jobs, self._ask = server, server.jobs, server.ask
        self._used = server.tubes[DEFAULT]
        self._watched = {DEFAULT: self._used}
        self._held: dict[int, Held] = {}
        self.waiter: asyncio.Future[Taken | None] | None = None
        self.is_producer = self.is_worker = self._ended = self._lost = False

    # Its life.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._output = asyncio.StreamWriter(transport, self, self._input, self._server.loop)
        self._server.spawn(self._serve())

    def eof_received(self) -> bool | None:
        """The commands that came before the end have their replies, but no reserve waits any more."""
        self._hang_up()
        return super().eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost = True
        self._hang_up()
        super().connection_lost(error)

    def _hang_up(self) -> None:
        self._ended = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def _serve(self) -> None:
        self._server.connections.add(self)
        self._server.connections_seen += 1
        self._used.using += 1
        self._used.watching += 1
        try:
            while (reply := await self._reply()) is not None:
                self._output.writelines((reply, b"\r\n"))
                await self._output.drain()
        except (EOFError, OSError):
            pass  # the client has gone
        finally:
            self._output.close()
            self._server.connections.discard(self)
            self._used.using -= 1
            for tube in self._watched.values():
                tube.watching -= 1
            self._server.release(self._held.values(), seen=True)

    # Input.

    async def _reply(self) -> bytes | None:
        """The reply to the next command; None if it quits."""
        line = await self._line()
        command = protocol.BAD_FORMAT if line is None else protocol.command_of(line)
        if isinstance(command, bytes):
            return command
        self._server.commands[command.name] += 1
        if command.name == "quit":
            return None
        try:
            if command.name in figures.COMMANDS:
                return await figures.COMMANDS[command.name](self._server, command)
            return await _COMMANDS[command.name](self, command)
        except SURVIVED as error:
            if self._ended and isinstance(error, EOFError | OSError):
                raise  # half of a body
            return refusal(error)

    async def _line(self) -> bytes | None:
        """The next line; None in place of one that is too long."""
        is_long = False
        while True:
            try:
                line = await self._input.readuntil(b"\r\n")
            except asyncio.LimitOverrunError as error:
                await self._input.readexactly(error.consumed)
                is_long = True
            else:
                return None if is_long or len(line) > protocol.LINE_BYTES_MAX else line[:-2]

    async def _pass_over(self, left: int) -> None:
        """Read `left` bytes, and keep none."""
        while left:
            passed = len(await self._input.read(min(left, READ_AHEAD_BYTES)))
            if not passed:
                raise EOFError
            left -= passed

    # Commands: each returns its reply.

    async def _put(self, command: Command) -> bytes:
        tube, (pri, delay_s, ttr_s, size) = self._used, command.numbers
        if size > self._server.max_job_size:
            await self._pass_over(size + 2)
            return b"JOB_TOO_BIG"
        if command.rest:
            return protocol.BAD_FORMAT
        self.is_producer = True
        body = await self._input.readexactly(size + 2)
        if body[-2:] != b"\r\n":
            return b"EXPECTED_CRLF"
        if self._server.is_draining:
            return b"DRAINING"
        number = await self._ask(Kind.PUT, New(body[:-2], pri, delay_s, ttr_s), tube.name)
        tube.jobs += 1
        self._server.total_jobs += 1
        return b"INSERTED %d" % number

    async def _use(self, command: Command) -> bytes:
        tube = self._server.enter(command.tube)
        self._used.using -= 1
        self._used = tube
        tube.using += 1
        return await self._list_tube_used(command)

    async def _watch(self, command: Command) -> bytes:
        if command.tube not in self._watched:
            if len(self._watched) >= WATCHED_MAX:
                return protocol.OUT_OF_MEMORY
            tube = self._watched[command.tube] = self._server.enter(command.tube)
            tube.watching += 1
        return b"WATCHING %d" % len(self._watched)

    async def _ignore(self, command: Command) -> bytes:
        if command.tube in self._watched:
            if len(self._watched) == 1:
                return b"NOT_IGNORED"
            self._watched.pop(command.tube).watching -= 1
        return b"WATCHING %d" % len(self._watched)

    async def _reserve(self, command: Command) -> bytes:
        self.is_worker = True
        until = self._server.loop.time() + (command.numbers[0] if command.numbers else inf)
        tubes = sorted(name for name, tube in self._watched.items() if not tube.is_paused)
        taken = await self._ask(Kind.TAKE, None, *tubes) if tubes else None
        if taken is None:
            taken = await self._wait(until)
        if taken is not None:
            return self._hold(taken)
        return b"DEADLINE_SOON" if self.margin_s() <= 0 else b"TIMED_OUT"

    async def _wait(self, until: float) -> Taken | None:
        """Wait for a job, for the timeout, or for the end of a lease to be near, whichever is first."""
        tubes, loop = list(self._watched.values()), self._server.loop
        self.waiter = waiter = loop.create_future()
        try:
            while not (self._ended or waiter.done()):
                left_s = min(self.margin_s(), until - loop.time())
                if left_s <= 0:
                    break
                for tube in tubes:
                    self._server.wait(tube, waiter)
                await asyncio.wait([waiter], timeout=left_s)
        finally:
            self.waiter = None
            for tube in tubes:
                self._server.leave(tube, waiter)
        return waiter.result() if waiter.done() else None

    async def _reserve_job(self, command: Command) -> bytes:
        self.is_worker = True
        token = self._server.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        take = partial(self._jobs.reserve_job, number=command.numbers[0], token=token)
        taken = await self._ask(Kind.CHANGE, take)
        return NOT_FOUND if taken is None else self._hold(taken)

    def _hold(self, taken: Taken) -> bytes:
        if self._lost:
            self._server.release([taken.held], seen=False)
            return b""
        self._held[taken.held.number] = taken.held
        return protocol.with_body("RESERVED", taken.held.number, taken.body)

    # A job stays in `_held` until the commit: after a failure, the client may try again.

    async def _delete(self, command: Command) -> bytes:
        [number] = command.numbers
        held = self._holds(number)
        if held is None:
            tube = await self._ask(Kind.CHANGE, partial(self._jobs.delete, number=number))
        else:
            tube = held.tube if await self._ask(Kind.DELETE, held, held.tube) else None
            self._held.pop(number, None)
        if tube is None:
            return NOT_FOUND
        if tube in self._server.tubes:
            self._server.tubes[tube].deletes += 1
        return b"DELETED"

    async def _release(self, command: Command) -> bytes:
        return await self._end(self._jobs.release, command, b"RELEASED")

    async def _bury(self, command: Command) -> bytes:
        return await self._end(self._jobs.bury, command, b"BURIED")

    async def _end(self, verb: Callable[..., bool], command: Command, reply: bytes) -> bytes:
        number, *more = command.numbers
        held = self._holds(number)
        if held is None:
            return NOT_FOUND

        def end(attempt: Attempt) -> bool:
            return verb(attempt, held, *more)

        is_done = await self._ask(Kind.CHANGE, end, held.tube)
        self._held.pop(number, None)
        return reply if is_done else NOT_FOUND

    async def _touch(self, command: Command) -> bytes:
        held = self._holds(command.numbers[0])
        if held is None:
            return NOT_FOUND
        until = await self._ask(Kind.CHANGE, partial(self._jobs.touch, held=held), held.tube)
        if until is None:
            return NOT_FOUND
        held.until = until
        return b"TOUCHED"

    def _holds(self, number: int) -> Held | None:
        self._lose_ended()
        return self._held.get(number)

    def _lose_ended(self) -> None:
        now = self._server.runtime.now()
        for held in [held for held in self._held.values() if held.until <= now]:
            del self._held[held.number]
            self._server.timeouts += 1

    def margin_s(self) -> float:
        self._lose_ended()
        first = min((held.until for held in self._held.values()), default=inf)
        return first - SAFETY_MARGIN_S - self._server.runtime.now()

    async def _kick(self, command: Command) -> bytes:
        tube, kicked, more, state = self._used.name, 0, limits.VERB_BATCH, ""
        while more == limits.VERB_BATCH:
            count = command.numbers[0] - kicked
            kick = partial(self._jobs.kick, tube=tube, count=count, state=state)
            more, state = await self._ask(Kind.CHANGE, kick, tube)
            kicked += more
        return b"KICKED %d" % kicked

    async def _kick_job(self, command: Command) -> bytes:
        kick = partial(self._jobs.kick_job, number=command.numbers[0])
        return b"KICKED" if await self._ask(Kind.CHANGE, kick) else NOT_FOUND

    async def _peek(self, command: Command) -> bytes:
        found = await self._look(command)
        return NOT_FOUND if found is None else protocol.with_body("FOUND", found[0], found[3])

    async def _stats_job(self, command: Command) -> bytes:
        found = await self._look(command)
        return NOT_FOUND if found is None else figures.of_job(self._server.runtime.now_us(), found)

    async def _look(self, command: Command) -> Any:
        return await self._ask(Kind.LOOK, partial(self._jobs.look, number=command.numbers[0]))

    async def _peek_first(self, command: Command) -> bytes:
        tube, state = self._used.name, protocol.PEEKED[command.name]
        found = await self._ask(Kind.LOOK, partial(self._jobs.first, tube=tube, state=state), tube)
        return NOT_FOUND if found is None else protocol.with_body("FOUND", *found)

    async def _list_tube_used(self, _: Command) -> bytes:
        return b"USING %b" % self._used.name.encode()

    async def _list_tubes_watched(self, _: Command) -> bytes:
        return protocol.listing(self._watched)


_SHARED = {"reserve-with-timeout": "reserve", **dict.fromkeys(protocol.PEEKED, "peek-first")}
"""Commands that have a method together."""
_COMMANDS: dict[str, Callable[[Connection, Command], Awaitable[bytes]]] = {
    name: getattr(Connection, f"_{_SHARED.get(name, name).replace('-', '_')}")
    for name in protocol.NAMES - {"quit"} - set(figures.COMMANDS)
}
