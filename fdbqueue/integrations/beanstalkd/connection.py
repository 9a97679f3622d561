"""A connection: the bytes of a client become commands, one after the other, and each has its reply.

While a command waits for its answer, the client may send more, up to READ_AHEAD_BYTES; then the server reads
no further. A client that does not read its replies gets no further command carried out. So a connection holds
at most the body of one job, one reply, and the bytes that it is ahead.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.visible import SURVIVED
from fdbqueue.integrations.beanstalkd import protocol
from fdbqueue.integrations.beanstalkd.batches import End, Put, refusal
from fdbqueue.integrations.beanstalkd.figures import Figures
from fdbqueue.integrations.beanstalkd.jobs import Held, New, Taken
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
        self._figures = figures
        self.used = server.enter(DEFAULT, "using")
        self.watched = {DEFAULT: server.enter(DEFAULT, "watching")}
        self._in = bytearray()
        self._passing = 0
        """The bytes of a body that are still to be passed over."""
        self._refusal = b""
        """The reply at their end."""
        self._is_long = False
        """True in a line that is too long."""
        self._put_line: Command | None = None
        self._busy = self._choked = self._is_silent = False
        self._transport: asyncio.Transport

    # Called by the loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.server.connected(self)

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
        while not (self._busy or self._choked or self.closed) and self._step():
            pass
        if self.ended and not self._busy and not self._choked:
            self._transport.close()
        stops = len(self._in) > READ_AHEAD_BYTES and (self._busy or self._choked)
        if stops != self._is_silent and not self.closed and not self._transport.is_closing():
            self._is_silent = stops
            (self._transport.pause_reading if stops else self._transport.resume_reading)()

    def _step(self) -> bool:
        """Handle the next line or body; false if some of its bytes are missing."""
        if self._passing:
            return self._pass_over()
        if self._put_line is not None:
            return self._take_body(self._put_line)
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
            self.write(self._refusal)
        return not self._passing

    def _take_body(self, command: Command) -> bool:
        pri, delay_s, ttr_s, size = command.numbers
        if len(self._in) < size + 2:
            return False
        body, end = bytes(self._in[:size]), self._in[size : size + 2]
        del self._in[: size + 2]
        self._put_line = None
        if end != b"\r\n":
            self.server.jobs.use_numbers(1)
            self.write(protocol.EXPECTED_CRLF)
        elif self.server.is_draining:
            self.write(protocol.DRAINING)
        else:
            self._busy = True
            done = partial(self._inserted, self.used)
            self.server.batches.add(Put(self.used.name, New(body, pri, delay_s, ttr_s), done))
        return True

    # Output.

    def write(self, reply: bytes) -> None:
        if not self.closed:
            self._transport.write(reply)

    def answer(self, reply: bytes) -> None:
        self._busy = False
        self.write(reply)
        self._advance()

    def answer_with(self, taken: Taken) -> None:
        if self.closed:
            self.server.release([taken.held])
            return
        self.held[taken.held.number] = taken.held
        self.answer(protocol.with_body("RESERVED", taken.held.number, taken.body))

    def _later(self, work: Coroutine[Any, Any, bytes]) -> None:
        """Answer a command with the result of a coroutine."""
        self._busy = True
        self.server.spawn(self._finish(work))

    async def _finish(self, work: Coroutine[Any, Any, bytes]) -> None:
        try:
            reply = await work
        except SURVIVED as error:
            reply = refusal(error)
        self.answer(reply)

    def _change(
        self, verb: Callable[..., Any], *tubes: str, then: Callable[[Any], None] | None = None
    ) -> None:
        """Answer with the result of a verb; `then` turns that into a reply."""
        self._busy = True
        self.server.change(verb, then or self.answer, *tubes)

    # Commands.

    def _handle(self, command: Command | bytes) -> None:
        if isinstance(command, bytes):
            self.write(command)
            return
        self.server.commands[command.name] += 1
        reply = getattr(self, "_" + command.name.replace("-", "_"))(command)
        if reply is not None:
            self.write(reply)

    def _put(self, command: Command) -> bytes | None:
        size = command.numbers[3]
        if size > self.server.max_job_size:
            self._passing, self._refusal = size + 2, protocol.JOB_TOO_BIG
            return None
        if command.rest:
            return protocol.BAD_FORMAT
        self.is_producer, self._put_line = True, command
        return None

    def _inserted(self, tube: Tube, answer: int | bytes) -> None:
        if isinstance(answer, bytes):
            self.answer(answer)
            return
        tube.jobs += 1
        self.server.total_jobs += 1
        self.answer(b"INSERTED %d\r\n" % answer)

    def _use(self, command: Command) -> bytes:
        tube = self.server.enter(command.tube, "using")
        if tube is None:
            return protocol.OUT_OF_MEMORY
        self.used.using -= 1
        self.used = tube
        return self._list_tube_used(command)

    def _watch(self, command: Command) -> bytes:
        if command.tube not in self.watched:
            tube = None if len(self.watched) >= WATCHED_MAX else self.server.enter(command.tube, "watching")
            if tube is None:
                return protocol.OUT_OF_MEMORY
            self.watched[command.tube] = tube
        return b"WATCHING %d\r\n" % len(self.watched)

    def _ignore(self, command: Command) -> bytes:
        if command.tube in self.watched:
            if len(self.watched) == 1:
                return protocol.NOT_IGNORED
            self.watched.pop(command.tube).watching -= 1
        return b"WATCHING %d\r\n" % len(self.watched)

    def _reserve(self, _: Command) -> None:
        self._start_reserve(None)

    def _reserve_with_timeout(self, command: Command) -> None:
        self._start_reserve(command.numbers[0])

    def _start_reserve(self, timeout_s: float | None) -> None:
        self.is_worker = self._busy = True
        self.server.reserve(self, timeout_s)

    def _reserve_job(self, command: Command) -> None:
        self.is_worker = True

        def then(answer: Taken | bytes | None) -> None:
            if isinstance(answer, Taken):
                self.answer_with(answer)
            else:
                self.answer(answer or protocol.NOT_FOUND)

        jobs = self.server.jobs
        random = self.server.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        self._change(
            lambda tr, _, session: jobs.reserve_job(tr, command.numbers[0], session, random), then=then
        )

    def _delete(self, command: Command) -> None:
        [number] = command.numbers
        held, jobs = self._held(number), self.server.jobs
        self._busy = True
        if held is None:
            self._change(lambda tr, *_: jobs.delete(tr, number), then=self._deleted_any)
        else:
            del self.held[number]
            self.server.batches.add(End(held.tube, held, partial(self._deleted, held.tube)))

    def _deleted_any(self, answer: str | bytes | None) -> None:
        if isinstance(answer, str):
            self._deleted(answer, protocol.DELETED)
        else:
            self.answer(answer or protocol.NOT_FOUND)

    def _deleted(self, tube: str, answer: bytes) -> None:
        known = self.server.tubes.get(tube)
        if known is not None and answer == protocol.DELETED:
            known.deletes += 1
        self.answer(answer)

    def _release(self, command: Command) -> bytes | None:
        number, pri, delay_s = command.numbers
        return self._end(number, lambda tr, held: self.server.jobs.release(tr, held, pri, delay_s))

    def _bury(self, command: Command) -> bytes | None:
        number, pri = command.numbers
        return self._end(number, lambda tr, held: self.server.jobs.bury(tr, held, pri))

    def _end(self, number: int, verb: Callable[[Any, Held], bytes]) -> bytes | None:
        held = self._held(number)
        if held is None:
            return protocol.NOT_FOUND
        del self.held[number]
        self._change(lambda tr, *_: verb(tr, held), held.tube)
        return None

    def _touch(self, command: Command) -> bytes | None:
        held = self._held(command.numbers[0])
        if held is None:
            return protocol.NOT_FOUND

        def then(until: float | bytes | None) -> None:
            if isinstance(until, float):
                held.until = until
                self.answer(protocol.TOUCHED)
            else:
                self.answer(until or protocol.NOT_FOUND)

        self._change(lambda tr, *_: self.server.jobs.touch(tr, held), held.tube, then=then)
        return None

    def _held(self, number: int) -> Held | None:
        self.soonest()
        return self.held.get(number)

    def soonest(self) -> float:
        """The end of the lease that ends first. Forget the jobs with a lease that is over."""
        now = self.server.now()
        for held in [held for held in self.held.values() if held.until <= now]:
            del self.held[held.number]
            self.server.timeouts += 1
        return min((held.until for held in self.held.values()), default=inf)

    def margin_s(self) -> float:
        return self.soonest() - SAFETY_MARGIN_S - self.server.now()

    def abort(self) -> None:
        self._transport.abort()

    def _kick(self, command: Command) -> None:
        self._later(self.server.kick(self.used.name, command.numbers[0]))

    def _kick_job(self, command: Command) -> None:
        self._change(lambda tr, *_: self.server.jobs.kick_job(tr, command.numbers[0]))

    def _peek(self, command: Command) -> None:
        self._later(self._figures.peek(command.numbers[0]))

    def _peek_ready(self, _: Command) -> None:
        self._peek_first("r")

    def _peek_delayed(self, _: Command) -> None:
        self._peek_first("~")

    def _peek_buried(self, _: Command) -> None:
        self._peek_first("!")

    def _peek_first(self, state: str) -> None:
        def then(found: tuple[int, bytes] | bytes | None) -> None:
            if isinstance(found, tuple):
                self.answer(protocol.with_body("FOUND", *found))
            else:
                self.answer(found or protocol.NOT_FOUND)

        jobs, tube = self.server.jobs, self.used.name
        self._change(lambda tr, numbers, _: jobs.first(tr, tube, state, numbers), tube, then=then)

    def _stats(self, _: Command) -> None:
        self._later(self._figures.of_server())

    def _stats_job(self, command: Command) -> None:
        self._later(self._figures.of_job(command.numbers[0]))

    def _stats_tube(self, command: Command) -> None:
        self._later(self._figures.of_tube(command.tube))

    def _list_tubes(self, _: Command) -> None:
        self._later(self._figures.tubes())

    def _list_tube_used(self, _: Command) -> bytes:
        return b"USING %b\r\n" % self.used.name.encode()

    def _list_tubes_watched(self, _: Command) -> bytes:
        return protocol.listing(self.watched)

    def _pause_tube(self, command: Command) -> None:
        self._later(self._paused(command.tube, max(command.numbers[0], 1)))

    async def _paused(self, tube: str, seconds: int) -> bytes:
        if not await self._figures.has_tube(tube):
            return protocol.NOT_FOUND
        self.server.pause(tube, seconds)
        return protocol.PAUSED

    def _quit(self, _: Command) -> None:
        self._transport.close()
        self.closed = True
