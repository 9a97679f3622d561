"""A model of jobs, beside two servers and a program that share one database: each answer must be the model's.

Commands come in batches, as connections send them: at most one of each connection.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from msgspec import Struct

import fdbqueue
from fdbqueue.core.database import run
from fdbqueue.core.root_keys import BEANSTALKD, DEFAULT_ROOT
from fdbqueue.core.task import BURIED, DELAYED, READY, TAKEN
from fdbqueue.integrations.beanstalkd import batches
from fdbqueue.integrations.beanstalkd.batches import Batches, Item, Kind
from fdbqueue.integrations.beanstalkd.jobs import Held, Jobs, New, Taken

TUBES = ("a", "b")


class Job(Struct):
    tube: str
    body: bytes
    pri: int
    order: int
    """Its place among all puts, or among all burials."""
    state: int = READY
    number: int = 0
    held: Held | None = None
    server: int = 0
    kicks: int = 0


class World:
    """Two servers of one database, a program, and the model."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.db = fdbqueue.open("memory:")
        self.jobs = [Jobs(self.db, DEFAULT_ROOT) for _ in range(2)]
        self.servers = [Batches(jobs) for jobs in self.jobs]
        self.model: list[Job] = []
        self.numbers: set[int] = set()
        self.turn = 0

    def ask(self, server: int, *items: tuple[Kind, Sequence[str], Any]) -> list[Any]:
        asked = [Item(kind, tuple(tubes), argument) for kind, tubes, argument in items]
        return self.servers[server].perform(asked)

    def step(self) -> None:
        choices = [self.put, self.put, self.take, self.take, self.take_any, self.program_puts, self.kick]
        choices += [
            self.kick_job,
            self.delete,
            self.delete_any,
            self.release,
            self.bury,
            self.bury,
            self.give_back,
        ]
        choices += [self.reserve_job, self.program_kicks, self.program_ends, self.look]
        self.random.choice(choices)()

    def put(self) -> None:
        server, tube, bodies = self.random.randrange(2), self.random.choice(TUBES), self._bodies()
        news = [
            New(body, self.random.randrange(3), self.random.choice((0, 0, 1_000)), 100) for body in bodies
        ]
        answers = self.ask(server, *((Kind.PUT, (tube,), new) for new in news))
        for new, number in zip(news, answers, strict=True):
            self._new_number(number)
            state = DELAYED if new.delay_s else READY
            self.model.append(Job(tube, new.body, new.pri, self._next(), state, number))

    def program_puts(self) -> None:
        tube, body, pri = self.random.choice(TUBES), self._bodies()[0], self.random.randrange(3)
        self.jobs[0].queue(tube).put(self.db, body, pri=pri)
        self.model.append(Job(tube, body, pri, self._next()))

    def take(self) -> None:
        tube, server, count = self.random.choice(TUBES), self.random.randrange(2), self.random.randint(1, 3)
        answers = self.ask(server, *[(Kind.TAKE, (tube,), None)] * count)
        wanted = self._ready((tube,))[:count]
        assert [answer.body for answer in answers if answer is not None] == [job.body for job in wanted]
        for job, answer in zip(wanted, answers, strict=False):
            self._took(server, job, answer)

    def take_any(self) -> None:
        server = self.random.randrange(2)
        [answer] = self.ask(server, (Kind.TAKE, TUBES, None))
        wanted = self._ready(TUBES)
        assert (answer is None) == (not wanted)
        if answer is not None:
            [job] = [job for job in wanted if job.body == answer.body]
            assert job.pri == wanted[0].pri
            self._took(server, job, answer)

    def kick(self) -> None:
        tube, count = self.random.choice(TUBES), self.random.randint(0, 3)
        kick = partial(self.jobs[0].kick, tube=tube, count=count)
        [(kicked, _)] = self.ask(0, (Kind.CHANGE, (tube,), kick))
        buried = sorted(self._in(BURIED, tube), key=lambda job: job.order)
        few = buried or self._in(DELAYED, tube)
        assert kicked == min(count, len(few))
        if buried:
            for job in few[:count]:
                self._ready_again(job)
        else:
            self._see_which_are_ready(few)

    def _see_which_are_ready(self, few: Sequence[Job]) -> None:
        """Delayed jobs are due in the order of their times, which the model does not know."""
        for job in few:
            [found] = self.ask(0, (Kind.LOOK, (), self._about("look", job)))
            if found[2].state == READY:
                self._ready_again(job)

    def kick_job(self) -> None:
        for job in self._any(lambda job: job.number > 0):
            [done] = self.ask(0, (Kind.CHANGE, (), self._about("kick_job", job)))
            assert bool(done) == (job.state in (BURIED, DELAYED))
            if done:
                self._ready_again(job)

    def look(self) -> None:
        for job in self._any(lambda job: job.number > 0):
            [(number, row, record, body)] = self.ask(0, (Kind.LOOK, (), self._about("look", job)))
            assert (number, row.tube, body) == (job.number, job.tube, job.body)
            assert (record.state, record.pri) == (job.state, job.pri)

    def reserve_job(self) -> None:
        for job in self._any(lambda job: job.number > 0):
            token = self.random.randbytes(8)
            take = partial(self.jobs[1].reserve_job, number=job.number, token=token)
            [answer] = self.ask(1, (Kind.CHANGE, (), take))
            assert (answer is None) == (job.state == TAKEN)
            if answer is not None:
                self._took(1, job, answer)

    def delete(self) -> None:
        for job in self._any(lambda job: job.held is not None):
            asked = (Kind.DELETE, (job.tube,), job.held)
            assert self.ask(job.server, asked, asked) == [True, False]
            self.model.remove(job)

    def delete_any(self) -> None:
        for job in self._any(lambda job: job.number > 0):
            [tube] = self.ask(0, (Kind.CHANGE, (), self._about("delete", job)))
            assert tube == (None if job.state == TAKEN else job.tube)
            if tube is not None:
                self.model.remove(job)

    def release(self) -> None:
        self._end("release", READY, delay_s=0)

    def bury(self) -> None:
        self._end("bury", BURIED)

    def _end(self, verb: str, state: int, **more: int) -> None:
        for job in self._any(lambda job: job.held is not None):
            pri, jobs = self.random.randrange(3), self.jobs[job.server]
            end = partial(getattr(jobs, verb), held=job.held, pri=pri, **more)
            assert self.ask(job.server, *[(Kind.CHANGE, (job.tube,), end)] * 2) == [True, False]
            job.state, job.pri, job.held = state, pri, None
            if state == BURIED:
                job.order = self._next()

    def give_back(self) -> None:
        """A connection goes."""
        for job in self._any(lambda job: job.held is not None):
            assert job.held is not None
            give_back = partial(self.jobs[0].give_back, tube=job.tube, targets=[job.held.target], seen=True)
            self.ask(job.server, (Kind.CHANGE, (job.tube,), give_back))
            job.state, job.held = READY, None

    def program_kicks(self) -> None:
        tube = self.random.choice(TUBES)
        assert self.jobs[0].queue(tube).kick(self.db, 1_000) == len(self._in(BURIED, tube))
        for job in self._in(BURIED, tube):
            job.state = READY

    def program_ends(self) -> None:
        tube, wanted = self.random.choice(TUBES), []
        wanted = self._ready((tube,))
        task = self.jobs[0].queue(tube).take(self.db, 0)
        assert (task is None) == (not wanted)
        if task is not None:
            assert task.data == wanted[0].body
            self.jobs[0].queue(tube).ack(self.db, task)
            self.model.remove(wanted[0])

    def check(self) -> None:
        """Nothing is lost, and nothing is left beside the jobs."""
        assert fdbqueue.verify(self.db).findings == ()
        for job in self.model:
            if job.number:
                [(_, row, _, body)] = self.ask(0, (Kind.LOOK, (), self._about("look", job)))
                assert (body, row.kicks) == (job.body, job.kicks)
        run(self.db, lambda tr: self.jobs[0].clear_stale(tr, 0, 10_000))
        rows, burials = (
            self.db.get_range_startswith(DEFAULT_ROOT.pack((BEANSTALKD, table))) for table in (1, 3)
        )
        assert len(rows) == sum(job.number > 0 for job in self.model)
        keys = self.jobs[0].keys
        buried = [keys.buried_in(row.key) for row in burials]
        assert None not in run(self.db, lambda tr: keys.numbers(tr, buried))

    # The model.

    def _about(self, verb: str, job: Job) -> Callable[[Any], Any]:
        return partial(getattr(self.jobs[0], verb), number=job.number)

    def _ready(self, tubes: Sequence[str]) -> list[Job]:
        """Ready jobs, the first one first. Its order is that of its put, whatever has happened to it."""
        found = [job for tube in tubes for job in self._in(READY, tube)]
        return sorted(found, key=lambda job: (job.pri, self.model.index(job)))

    def _in(self, state: int, tube: str) -> list[Job]:
        return [job for job in self.model if (job.state, job.tube) == (state, tube)]

    def _any(self, fits: Callable[[Job], bool]) -> list[Job]:
        found = list(filter(fits, self.model))
        return [self.random.choice(found)] if found else []

    def _took(self, server: int, job: Job, answer: Taken) -> None:
        assert answer.body == job.body
        if not job.number:
            self._new_number(answer.held.number)
            job.number = answer.held.number
        assert answer.held.number == job.number
        job.state, job.held, job.server = TAKEN, answer.held, server

    def _ready_again(self, job: Job) -> None:
        job.state, job.kicks = READY, job.kicks + (job.number > 0)

    def _new_number(self, number: int) -> None:
        assert number not in self.numbers
        self.numbers.add(number)

    def _bodies(self) -> list[bytes]:
        return [b"%d" % self._next() for _ in range(self.random.randint(1, 3))]

    def _next(self) -> int:
        self.turn += 1
        return self.turn


def run_world(seed: int, steps: int = 120) -> None:
    """Raises: AssertionError for an answer that is not that of the model."""
    before, batches.BLOCK = batches.BLOCK, 2  # so both servers often take other numbers
    world = World(Random(seed))
    try:
        for _ in range(steps):
            world.step()
        world.check()
    finally:
        batches.BLOCK = before
        world.db.close()
