"""Blame for a lost lease: simulated outages, stalls and deaths, each longer than the ttr."""

from functools import partial

import pytest

from fdbqueue import Backoff, Done, TaskQueue, Worker
from fdbqueue.core.errors import PayloadUnreadable
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions import ending
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.core.sessions.session import Session
from fdbqueue.fleet.feed import Feed
from fdbqueue.fleet.settling import Heartbeat, Pulse, is_to_blame
from fdbqueue.testing import Faults, Simulation

NAME = "jobs"
TTR_S = 3.0
LONG_S = 4 * TTR_S
AT_S, BUSY_S = 4.0, 20.0


class Scene:
    """A worker with one long task, and an idle worker, without random faults."""

    def __init__(self, kind="fifottl", seed=0, ttr_s=TTR_S, **options):
        self.simulation = Simulation(seed, faults=Faults())
        self.kind = kind
        self.ttr_s = ttr_s
        self.options = {"threads": 1, "attempts": 1, "session_ttr_s": ttr_s, **options}
        self.told = []
        self.simulation.client(self.first, "first")
        self.simulation.client(self.second, "second")
        self.simulation.afterwards(self.look, "looker")

    def opened(self, client):
        ttr = self.ttr_s if self.kind != "fifo" else None
        return TaskQueue.create(client.db, NAME, self.kind, ttr=ttr, if_not_exists=True)

    def first(self, client):
        q = self.opened(client)
        q.put(client.db, "x")
        self.work(client, 0)

    def second(self, client):
        self.opened(client)
        self.work(client, 2)

    def work(self, client, wait_s):
        client.runtime.sleep(wait_s)
        worker = Worker(client.db, NAME, partial(self.handle, client), **self.options)
        worker.start()
        client.runtime.sleep(60)
        worker.stop()
        worker.join()

    def handle(self, client, task):
        self.told.append(task.attempts)
        client.runtime.sleep(BUSY_S if task.attempts == 1 else 0.1)
        raise Done(lambda tr: tr.add(b"effect", b"\x01"))

    def look(self, client):
        q = self.opened(client)
        self.left = [(task.state.value, task.failures) for s in "rt!~" for task in q.tasks(client.db, s, 9)]
        self.effect = client.db[b"effect"]

    def run(self):
        result = self.simulation.run()
        assert result.violations == ()
        return self

    def at(self, when_s, what):
        """Act on the machine of the first worker."""
        scheduler = self.simulation.scheduler
        host = self.simulation._machines[0].runtime.host
        scheduler.call_at(when_s, lambda: what(scheduler, host))


class SceneWithDeadSession(Scene):
    """The first worker meets a dead session, before there is another worker."""

    def first(self, client):
        self.simulation.stop("first", client.runtime.monotonic(), 0)  # no calm run: a session is left to die
        session = Session(client.db, ttr=TTR_S / 4)
        keeper_of(client.db, RootKeys(DEFAULT_ROOT)).forget(session)
        super().first(client)

    def second(self, client):
        client.runtime.sleep(AT_S)
        super().second(client)


def stall(scheduler, host):
    scheduler.stall(host, scheduler.now + LONG_S)


def die(scheduler, host):
    scheduler.die(host)


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utubettl"])
def test_an_outage_longer_than_the_lease_costs_no_attempt(kind, rounds):
    """The first sweep found the lease over, or the session dead; at any phase of the heartbeat.

    The task had one attempt, so the sweep buried it; it is ready again.
    """
    for seed in range(0, 20, rounds(3, 1)):
        scene = Scene(kind=kind, seed=seed)
        scene.simulation.outage(AT_S + seed / 10, LONG_S)
        scene.run()
        assert scene.told[0] == 1
        assert (scene.left, scene.effect) == ([], b"\x01")


def test_a_silence_at_the_end_of_a_dead_session_costs_no_attempt(monkeypatch):
    """The keeper renewed its own sessions in the middle of that end, and met no answer after it."""
    finish, late = ending._finish, ["first"]  # the aftermath has a process of that name, too

    def finish_late(database, keys, entries, died):
        if database.runtime.host_name() in late:
            late.clear()
            database.runtime.sleep(TTR_S / 2)
            keeper_of(database, keys).beat()
            database.runtime.sleep(LONG_S)
        finish(database, keys, entries, died)

    monkeypatch.setattr(ending, "_finish", finish_late)
    scene = SceneWithDeadSession(kind="fifo").run()
    assert scene.told[0] == 1
    assert (scene.left, scene.effect) == ([], b"\x01")


@pytest.mark.parametrize("what", [stall, die])
def test_an_attempt_of_a_worker_that_stalls_or_dies_fails(what):
    """The task had one attempt: it is buried, also after the worker goes on."""
    scene = Scene()
    scene.at(AT_S, what)
    scene.run()
    assert (scene.left, scene.effect) == ([("!", 1)], None)


def test_a_heartbeat_that_fails_is_tried_again(monkeypatch):
    """The handler runs for six times the ttr, and keeps its lease."""
    failing, beat = [RuntimeError("can't start new thread")], Heartbeat._beat

    def fail_once(heartbeat):
        if failing and heartbeat.holds():
            raise failing.pop()
        beat(heartbeat)

    monkeypatch.setattr(Heartbeat, "_beat", fail_once)
    scene = Scene().run()
    assert (scene.told, scene.left, scene.effect, failing) == ([1], [], b"\x01", [])


@pytest.mark.parametrize("what", [stall, die])
def test_an_attempt_that_fails_during_an_outage_counts(what):
    """The worker might not have kept its lease without the outage."""
    scene = Scene()
    scene.simulation.outage(AT_S, LONG_S)
    scene.at(AT_S + 0.5, what)
    scene.run()
    assert (scene.left, scene.effect) == ([("!", 1)], None)


def test_an_attempt_that_overruns_after_an_outage_fails(monkeypatch):
    """The lease outlasted the outage: the timeout ended the attempt."""
    overran = Worker._overran

    def overran_at_once(worker, hold):
        overran(worker, hold)
        hold.take_away()  # the new thread does the same, and may come first

    monkeypatch.setattr(Worker, "_overran", overran_at_once)
    for seed in range(5):
        scene = Scene(seed=seed, ttr_s=9, attempts=2, timeout_s=9, backoff=Backoff(first_s=600))
        scene.simulation.outage(5.9, 1.5)  # within this time the lease is renewed
        scene.run()
        assert (scene.told, scene.left) == ([1], [("~", 1)])


def test_a_lease_almost_over_on_arrival_costs_no_attempt(monkeypatch):
    """The answer to the take arrived too late for a renewal."""
    take = Feed.take

    def take_late(feed, *args):
        found = take(feed, *args)
        for _, task in found:
            if task.attempts == 1:
                feed._runtime.sleep(task.until - feed._runtime.now() - 0.01)
        return found

    monkeypatch.setattr(Feed, "take", take_late)
    scene = Scene().run()
    assert scene.told[0] == 1
    assert (scene.left, scene.effect) == ([], b"\x01")


class Untidy:
    """Work for the keeper: several transactions, each of a given length."""

    def __init__(self, runtime, transactions, error=None):
        self.runtime, self.left, self.error = runtime, transactions, error

    def guard(self, _):
        return lambda: None

    def ask_next_due(self, _):
        return lambda: 0

    def tidy(self, _):
        if self.error is not None:
            raise self.error
        self.runtime.sleep(0.05)
        self.left = max(0, self.left - 1)
        return self.left > 0


@pytest.mark.parametrize("error", [None, PayloadUnreadable(codec="json", reason="test")])
def test_a_busy_keeper_is_no_silence_of_the_database(error):
    """An error of this process is no silence of the database, either."""
    simulation, silent_s = Simulation(0, faults=Faults()), []

    def keep(client):
        with Session(client.db):
            keeper = keeper_of(client.db, RootKeys(DEFAULT_ROOT))
            keeper.look_after(Untidy(client.runtime, 40, error))
            client.runtime.sleep(10)
            silent_s.append(keeper.silence.longest_s(since=0))

    simulation.client(keep, "keeper")
    assert simulation.run().violations == ()
    assert silent_s[0] < 0.2


def test_a_worker_that_ends_in_an_outage_ends_its_silence():
    """Otherwise the next worker of the process would blame the database for all its lost leases."""
    simulation, silent_s = Simulation(0, faults=Faults()), []

    def work(client):
        q = TaskQueue.create(client.db, NAME, "fifottl", ttr=TTR_S)
        q.put(client.db, "x")
        worker = Worker(client.db, NAME, lambda _: client.runtime.sleep(BUSY_S), threads=1, grace_s=1)
        worker.start()
        client.runtime.sleep(AT_S + TTR_S)
        worker.stop()
        assert worker.join(60)
        client.runtime.sleep(60)
        silence = keeper_of(client.db, RootKeys(DEFAULT_ROOT)).silence
        silent_s.append(silence.longest_s(since=client.runtime.now() - 5))

    simulation.client(work, "worker")
    simulation.outage(AT_S, 3 * LONG_S)
    assert simulation.run().violations == ()
    assert silent_s[0] < 0.2


def test_blame_for_a_lost_lease():
    """The database, if it was silent while this process was running."""
    assert is_to_blame(unanswered_s=6, stood_still_s=0, lease_s=6)
    assert not is_to_blame(unanswered_s=0.5, stood_still_s=0, lease_s=6)
    assert not is_to_blame(unanswered_s=6, stood_still_s=6, lease_s=6)
    assert not is_to_blame(unanswered_s=2, stood_still_s=2, lease_s=6)
    assert is_to_blame(unanswered_s=0, stood_still_s=0, lease_s=0.1)  # a silence this short is not recorded
    assert not is_to_blame(unanswered_s=0, stood_still_s=0.1, lease_s=0.1)


def test_stalls_add_up():
    """A starved process has many short stalls, in which it misses answers."""
    simulation, stood_still_s = Simulation(0, faults=Faults()), []

    def live(client):
        pulse = Pulse(client.runtime)
        pulse.start()
        client.runtime.sleep(20)
        stood_still_s.append(pulse.stood_still_s(since=0))
        pulse.end()

    simulation.client(live, "starved")
    scheduler, host = simulation.scheduler, simulation._machines[0].runtime.host
    for number in range(20):
        scheduler.call_at(1 + number / 2, lambda: scheduler.stall(host, scheduler.now + 0.4))
    assert simulation.run().violations == ()
    assert stood_still_s[0] > 3
