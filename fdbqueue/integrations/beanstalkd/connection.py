"""A connection: the bytes of a client become commands, one after the other, and each has its reply.

While a command waits for its answer, the client may send more, up to READ_AHEAD_BYTES; then the server reads
no further. A client that does not read its replies gets no further command carried out. So a connection holds
at most the body of one job, one reply, and the bytes that it is ahead.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd import figures, protocol
from fdbqueue.integrations.beanstalkd.batches import Item, Kind, refusal
from fdbqueue.integrations.beanstalkd.figures import Figures
from fdbqueue.integrations.beanstalkd.jobs import Attempt, Held, New, Taken
from fdbqueue.integrations.beanstalkd.protocol import LINE_BYTES_MAX, Command
from fdbqueue.integrations.beanstalkd.server import Server
from fdbqueue.integrations.beanstalkd.tubes import DEFAULT, Peer, Tube

READ_AHEAD_BYTES = 65_536
WATCHED_MAX = 1_000
SAFETY_MARGIN_S = 1.0
"""The last part of a lease, in which its connection is not made to wait for another job."""


class Connection(Peer):
    def __init__(self, server: Server, figures: Figures) -> None:
        super().__init__()
        self.server = server
        self._jobs = server.jobs
        self._figures = figures
        self.used = server.tubes[DEFAULT]
        self.watched = {DEFAULT: self.used}
        self._in = bytearray()
        self._passing = 0
        """The bytes of a body that is too big that are still to be passed over."""
        self._is_long = False
        """True in a line that is too long."""
        self._put_line: Command | None = None
        self._busy = self._choked = self._is_silent = self._advancing = False

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.used.using += 1
        self.used.watching += 1
        self.server.connections.add(self)
        self.server.connections_seen += 1

    def data_received(self, data: bytes) -> None:
        self._in += data
        self._advance()

    def eof_received(self) -> bool:
        """True: the commands that came before the end have their replies."""
        self.ended = True
        if self.waiter is not None:
            self.waiter.hang_up()
        self._advance()
        return True

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  # the client has gone, whatever the reason
        self.closed = True
        self._in.clear()
        self.server.disconnected(self)

    def pause_writing(self) -> None:
        self._choked = True

    def resume_writing(self) -> None:
        self._choked = False
        self._advance()

    # Input.

    def _advance(self) -> None:
        """Handle what has come. A command that is answered at once may call this again."""
        if self._advancing:
            return
        self._advancing = True
        while not (self._busy or self._choked or self.closed) and self._step():
            pass
        self._advancing = False
        if self.ended and not (self._busy or self._choked):
            self.transport.close()
        stops = len(self._in) > READ_AHEAD_BYTES and (self._busy or self._choked)
        if stops != self._is_silent and not self.closed and not self.transport.is_closing():
            self._is_silent = stops
            (self.transport.pause_reading if stops else self.transport.resume_reading)()

    def _step(self) -> bool:
        """Handle the next line or body; false if some of its bytes are missing."""
        if self._passing:
            return self._pass_over()
        if self._put_line is not None:
            return self._take_body(*self._put_line.numbers)
        end = self._in.find(b"\r\n") if self._is_long else self._in.find(b"\r\n", 0, LINE_BYTES_MAX)
        if end < 0:
            return self._begins_long_line()
        line, was_long, self._is_long = bytes(self._in[:end]), self._is_long, False
        del self._in[: end + 2]
        self._handle(protocol.BAD_FORMAT if was_long else protocol.command_of(line))
        return True

    def _begins_long_line(self) -> bool:
        """True at the beginning of a line that is too long; then its end is looked for."""
        if self._is_long:
            del self._in[:-1]  # the last byte may be half of the end
            return False
        self._is_long = len(self._in) >= LINE_BYTES_MAX
        return self._is_long

    def _pass_over(self) -> bool:
        passed = min(self._passing, len(self._in))
        del self._in[:passed]
        self._passing -= passed
        if not self._passing:
            self._write(protocol.JOB_TOO_BIG)
        return not self._passing

    def _take_body(self, pri: int, delay_s: int, ttr_s: int, size: int) -> bool:
        if len(self._in) < size + 2:
            return False
        body, end = bytes(self._in[:size]), self._in[size : size + 2]
        del self._in[: size + 2]
        self._put_line = None
        if end != b"\r\n":
            self._write(protocol.EXPECTED_CRLF)
        elif self.server.is_draining:
            self._write(protocol.DRAINING)
        else:
            job, then = New(body, pri, delay_s, ttr_s), partial(self._inserted, self.used)
            self._ask(Kind.PUT, job, then, self.used.name)
        return True

    # Output.

    def _write(self, reply: bytes) -> None:
        if not self.closed:
            self.transport.write(reply)

    def _answer(self, reply: bytes) -> None:
        self._busy = False
        self._write(reply)
        self._advance()

    def _ask(self, kind: Kind, argument: Any, then: Callable[[Any], bytes], *tubes: str) -> None:
        """Run a command in a batch, and reply with what `then` makes of its answer. None is: not found."""
        self._busy = True
        self.server.batches.add(Item(kind, tubes, argument, partial(self._answered, then)))

    def _answered(self, then: Callable[[Any], bytes], answer: Any) -> None:
        if answer is None:
            answer = protocol.NOT_FOUND
        self._answer(answer if isinstance(answer, bytes) else then(answer))

    def _later(self, work: Coroutine[Any, Any, bytes]) -> None:
        """Reply with the result of a coroutine."""
        self._busy = True
        self.server.spawn(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, bytes]) -> None:
        try:
            reply = await work
        except SURVIVED as error:
            reply = refusal(error)
        self._answer(reply)

    # Commands: each returns its reply, or None if that comes later.

    def _handle(self, command: Command | bytes) -> None:
        if isinstance(command, bytes):
            self._write(command)
            return
        self.server.commands[command.name] += 1
        reply = _COMMANDS[command.name](self, command)
        if reply is not None:
            self._write(reply)

    def _put(self, command: Command) -> bytes | None:
        size = command.numbers[3]
        if size > self.server.max_job_size:
            self._passing = size + 2
            return None
        if command.rest:
            return protocol.BAD_FORMAT
        self.is_producer, self._put_line = True, command
        return None

    def _inserted(self, tube: Tube, number: int) -> bytes:
        tube.jobs += 1
        self.server.total_jobs += 1
        return b"INSERTED %d\r\n" % number

    def _use(self, command: Command) -> bytes:
        tube = self.server.enter(command.tube)
        if tube is None:
            return protocol.OUT_OF_MEMORY
        self.used.using -= 1
        self.used = tube
        tube.using += 1
        return self._list_tube_used(command)

    def _watch(self, command: Command) -> bytes:
        if command.tube not in self.watched:
            tube = None if len(self.watched) >= WATCHED_MAX else self.server.enter(command.tube)
            if tube is None:
                return protocol.OUT_OF_MEMORY
            self.watched[command.tube] = tube
            tube.watching += 1
        return b"WATCHING %d\r\n" % len(self.watched)

    def _ignore(self, command: Command) -> bytes:
        if command.tube in self.watched:
            if len(self.watched) == 1:
                return protocol.NOT_IGNORED
            self.watched.pop(command.tube).watching -= 1
        return b"WATCHING %d\r\n" % len(self.watched)

    def _reserve(self, command: Command) -> None:
        self.is_worker = self._busy = True
        self.server.reserve(self, command.numbers[0] if command.numbers else inf)

    def reserved(self, answer: Taken | bytes) -> None:
        if isinstance(answer, Taken) and self.closed:
            self.server.release([answer.held], seen=False)
        else:
            self._answer(answer if isinstance(answer, bytes) else self._hold(answer))

    def _hold(self, taken: Taken) -> bytes:
        self.held[taken.held.number] = taken.held
        return protocol.with_body("RESERVED", taken.held.number, taken.body)

    def _reserve_job(self, command: Command) -> None:
        self.is_worker = self._busy = True
        token = self.server.runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        take = partial(self._jobs.reserve_job, number=command.numbers[0], token=token)
        self.server.batches.add(Item(Kind.CHANGE, (), take, self._reserved_one))

    def _reserved_one(self, answer: Taken | bytes | None) -> None:
        self.reserved(answer or protocol.NOT_FOUND)

    # Jobs stay in `held` until the commit: after a failure, the client may try again.

    def _delete(self, command: Command) -> None:
        [number] = command.numbers
        held = self._held(number)
        if held is None:
            self._ask(Kind.CHANGE, partial(self._jobs.delete, number=number), self._deleted)
        else:
            self._ask(Kind.DELETE, held, partial(self._deleted_held, held), held.tube)

    def _deleted_held(self, held: Held, is_done: bool) -> bytes:
        return self._ended(held, self._deleted(held.tube) if is_done else protocol.NOT_FOUND, True)

    def _deleted(self, tube: str) -> bytes:
        if tube in self.server.tubes:
            self.server.tubes[tube].deletes += 1
        return protocol.DELETED

    def _release(self, command: Command) -> bytes | None:
        return self._end(self._jobs.release, command.numbers, protocol.RELEASED)

    def _bury(self, command: Command) -> bytes | None:
        return self._end(self._jobs.bury, command.numbers, protocol.BURIED)

    def _end(self, verb: Callable[..., bool], numbers: Sequence[int], reply: bytes) -> bytes | None:
        held = self._held(numbers[0])
        if held is None:
            return protocol.NOT_FOUND

        def end(attempt: Attempt) -> bool:
            return verb(attempt, held, *numbers[1:])

        self._ask(Kind.CHANGE, end, partial(self._ended, held, reply), held.tube)
        return None

    def _ended(self, held: Held, reply: bytes, is_done: bool) -> bytes:
        self.held.pop(held.number, None)
        return reply if is_done else protocol.NOT_FOUND

    def _touch(self, command: Command) -> bytes | None:
        held = self._held(command.numbers[0])
        if held is None:
            return protocol.NOT_FOUND

        def then(until: float) -> bytes:
            held.until = until
            return protocol.TOUCHED

        self._ask(Kind.CHANGE, partial(self._jobs.touch, held=held), then, held.tube)
        return None

    def _held(self, number: int) -> Held | None:
        held = self.held.get(number)
        if held is not None and held.until <= self.server.now():
            self._lose(held)
            return None
        return held

    def _lose(self, held: Held) -> None:
        del self.held[held.number]
        self.server.timeouts += 1

    def margin_s(self) -> float:
        now = self.server.now()
        for held in [held for held in self.held.values() if held.until <= now]:
            self._lose(held)
        return min((held.until for held in self.held.values()), default=inf) - SAFETY_MARGIN_S - now

    def _kick(self, command: Command) -> None:
        self._later(self.server.kick(self.used.name, command.numbers[0]))

    def _kick_job(self, command: Command) -> None:
        kick = partial(self._jobs.kick_job, number=command.numbers[0])
        self._ask(Kind.CHANGE, kick, lambda is_done: b"KICKED\r\n" if is_done else protocol.NOT_FOUND)

    def _peek(self, command: Command) -> None:
        self._look(command, lambda found: protocol.with_body("FOUND", found[0], found[3]))

    def _stats_job(self, command: Command) -> None:
        self._look(command, lambda found: figures.of_job(self.server.runtime.now_us(), found))

    def _look(self, command: Command, then: Callable[[Any], bytes]) -> None:
        self._ask(Kind.LOOK, partial(self._jobs.look, number=command.numbers[0]), then)

    def _peek_first(self, command: Command) -> None:
        tube, state = self.used.name, protocol.PEEKED[command.name]
        first = partial(self._jobs.first, tube=tube, state=state)
        self._ask(Kind.LOOK, first, lambda found: protocol.with_body("FOUND", *found), tube)

    def _stats(self, _: Command) -> None:
        self._later(self._figures.of_server())

    def _stats_tube(self, command: Command) -> None:
        self._later(self._figures.of_tube(command.tube))

    def _list_tubes(self, _: Command) -> None:
        self._later(self._figures.list_tubes())

    def _list_tube_used(self, _: Command) -> bytes:
        return b"USING %b\r\n" % self.used.name.encode()

    def _list_tubes_watched(self, _: Command) -> bytes:
        return protocol.listing(self.watched)

    def _pause_tube(self, command: Command) -> None:
        self._later(self._figures.pause(command.tube, max(command.numbers[0], 1)))

    def _quit(self, _: Command) -> None:
        self.transport.close()
        self.closed = True


_SHARED = {"reserve-with-timeout": "reserve", **dict.fromkeys(protocol.PEEKED, "peek-first")}
"""Commands that have a method together."""
_COMMANDS: dict[str, Callable[[Connection, Command], bytes | None]] = {
    name: getattr(Connection, f"_{_SHARED.get(name, name).replace('-', '_')}") for name in protocol.NAMES
}
