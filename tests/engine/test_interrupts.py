"""A signal whose handler raises, at any moment of a commit: whoever goes on finds a database that works."""

import random
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

import fdbqueue
from tests.support import PATIENCE_S


class Interrupt(BaseException):
    """What the handler raises."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def db() -> Iterator[fdbqueue.Database]:
    """In memory only: a commit is nothing but the steps that a signal can come between."""
    with fdbqueue.open("memory:") as database:
        yield database


def commit_until_interrupted(db: fdbqueue.Database, key: bytes) -> None:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + random.random() * 0.002)
        while True:
            db[key] = b"value"
    except Interrupt:
        pass


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_commit_is_in_nobodys_way(db, k, rounds):
    """Neither a later one, nor those of other threads, whose answers are true."""
    stop = threading.Event()
    confirmed: list[bytes] = []

    def commit(name: str) -> None:
        number = 0
        while not stop.is_set():
            key = k(f"{name}-{number}")
            db[key] = b"value"
            confirmed.append(key)
            number += 1

    threads = [threading.Thread(target=commit, args=(name,), daemon=True) for name in "ab"]
    for thread in threads:
        thread.start()
    for _ in range(rounds(300, 5_000)):
        commit_until_interrupted(db, k("main"))
    stop.set()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "it waits for somebody who was interrupted"
    assert all(db[key] == b"value" for key in confirmed)


@pytest.mark.usefixtures("interrupts")
def test_alone(db, k, rounds):
    """Without others who would lead in its place."""
    for _ in range(rounds(500, 5_000)):
        commit_until_interrupted(db, k("main"))
    done = threading.Thread(target=lambda: db.set(k("after"), b"value"), daemon=True)
    done.start()
    done.join(PATIENCE_S)
    assert not done.is_alive(), "it waits for a commit that was interrupted"
