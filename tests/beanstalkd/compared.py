"""Random command sequences, run on two servers at once: each reply of one must be that of the other.

Numbers of jobs differ between servers, so a command names a job by its place among those of the sequence.
Times are compared only where a second more or less makes no difference.
"""

import re
from random import Random
from typing import NamedTuple

from tests.beanstalkd.client import Client, Served, figures_in, names_in

CONNECTIONS = 3
TUBES = ("a", "b", "c")
_LEFT_OUT = frozenset({"age", "time-left", "file", "total-jobs", "cmd-delete"})
_NUMBER = re.compile(rb"(INSERTED|RESERVED|FOUND|BURIED) (\d+)")


class Step(NamedTuple):
    connection: int
    line: str
    """With `{}` for the number of a job."""
    job: int = 0
    body: bytes | None = None


def steps_of(random: Random, count: int) -> list[Step]:
    return [_step(random) for _ in range(count)]


def _step(random: Random) -> Step:
    connection, job, tube = random.randrange(CONNECTIONS), random.randrange(12), random.choice(TUBES)
    pri, delay = random.choice((0, 1, 1023, 1024, 2**32 - 1)), random.choice((0, 0, 0, 1000, 2000))
    body = random.randbytes(random.choice((0, 1, 10, 300)))
    lines = {
        f"put {pri} {delay} {random.choice((100, 1000))} {len(body)}": 10,
        "reserve-with-timeout 0": 10,
        f"use {tube}": 3,
        f"watch {tube}": 3,
        f"ignore {tube}": 3,
        "ignore default": 1,
        "delete {}": 4,
        f"release {{}} {pri} {delay}": 5,
        f"bury {{}} {pri}": 6,
        "touch {}": 2,
        "reserve-job {}": 3,
        "kick-job {}": 2,
        f"kick {random.choice((0, 1, 2, 100))}": 3,
        "peek {}": 2,
        "peek-ready": 2,
        "peek-delayed": 2,
        "peek-buried": 2,
        "stats-job {}": 4,
        f"stats-tube {tube}": 2,
        "list-tube-used": 1,
        "list-tubes-watched": 1,
        "list-tubes": 1,
        random.choice(ODD_LINES): 3,
    }
    [line] = random.choices(list(lines), list(lines.values()))
    return Step(connection, line, job, None if line in ODD_LINES or not line.startswith("put") else body)


ODD_LINES = (
    *(
        "",
        "foo",
        "PUT 0 0 0 0",
        "put",
        "put ",
        "put a 0 0 0",
        "put 0 0 0",
        "put 4294967296 0 1 0",
        "put -1 0 1 0",
    ),
    *("delete", "delete ", "delete x", "delete 1 ", "delete 99999999", "delete 18446744073709551616"),
    *("release 1", "release 1 2", "release 1 2 3 4", "release 99999999 0 0", "bury 1", "bury 99999999 0"),
    *("touch 99999999", "peek 99999999", "peek", "peekx", "peek-ready ", "peek-readyx", "kick", "kick x"),
    *("kick 0x", "kick-job 99999999", "kick-job", "use", "use -a", "use a b", "use a*b", f"use {'x' * 201}"),
    *("watch -x", "watch", "ignore -x", "stats-tube", "stats-tube nosuch", "stats-tube -x", "stats-jobx"),
    *("reserve-with-timeout", "reserve x"),
    *("reserve-job x", "reserve-job 99999999", "list-tubes x", "list-tube-used x", "list-tubes-watched x"),
    *(
        "pause-tube",
        "pause-tube a",
        "pause-tube nosuch 0",
        "pause-tube -a 0",
        "stats x",
        "x" * 222,
        "y" * 240,
    ),
    *("z" * 300, "u" * 1000, "delete\t1", "use \0", "sta", " stats"),
)


class Pair:
    """Both servers, and the jobs of one sequence on each."""

    def __init__(self, *servers: Served) -> None:
        self._clients = [[server.client() for _ in range(CONNECTIONS)] for server in servers]
        self._jobs: list[list[bytes]] = [[] for _ in servers]

    def run(self, step: Step) -> list[object]:
        """The replies of both, with places in place of numbers."""
        replies = []
        for side in range(len(self._clients)):
            try:
                replies.append(self._reply(side, step))
            except TimeoutError:
                replies.append("no reply")
        return replies

    def close(self) -> None:
        for side, clients in enumerate(self._clients):
            for client in clients:
                client.close()
            del clients[:]
            self._jobs[side].clear()

    def numbers(self, side: int) -> list[bytes]:
        return self._jobs[side]

    def _reply(self, side: int, step: Step) -> object:
        jobs, client = self._jobs[side], self._clients[side][step.connection]
        number = jobs[step.job].decode() if step.job < len(jobs) else "99999999"
        reply = client.ask(step.line.replace("{}", number), step.body)
        if reply.startswith(b"INSERTED"):
            jobs.append(reply.split()[1])
        if not reply.startswith(b"OK "):
            return _NUMBER.sub(lambda found: self._place(side, found), reply)
        if "list" in step.line:
            return sorted(names_in(reply))
        found = figures_in(reply)
        found["id"] = str(jobs.index(found["id"].encode())) if "id" in found else ""
        return {name: value for name, value in found.items() if name not in _LEFT_OUT}

    def _place(self, side: int, found: re.Match[bytes]) -> bytes:
        return b"%b job %d" % (found[1], self._jobs[side].index(found[2]))


def clean(server: Served, numbers: list[bytes]) -> None:
    """Delete what a sequence has left; its connections are closed."""
    with server.client() as client:
        for number in numbers:
            reply = client.ask(f"delete {number.decode()}")
            while reply == b"NOT_FOUND\r\n" and client.ask(f"peek {number.decode()}") != reply:
                reply = client.ask(f"delete {number.decode()}")  # its connection is about to give it back
        found = names_in(client.ask("list-tubes"))
        assert found == ["default"], found


def differences(ours: Served, theirs: Served, random: Random, count: int) -> list[tuple[Step, list[object]]]:
    """The first step with replies that differ; none if all are equal."""
    pair, steps = Pair(ours, theirs), steps_of(random, count)
    left: list[list[bytes]] = []
    try:
        for step in steps:
            replies = pair.run(step)
            if replies[0] != replies[1]:
                return [(step, replies)]
    finally:
        left = [[*pair.numbers(side)] for side in range(2)]
        pair.close()
        for server, numbers in zip((ours, theirs), left, strict=True):
            clean(server, numbers)
    return []


def client_of(server: Served) -> Client:
    return server.client()
