"""Virtual time, threads, locks and deaths of simulated clients."""

import gc
import os
import tempfile

import pytest

from fdbqueue.testing import Client, Faults, Simulation

NONE = Faults()


def test_time_passes_only_when_all_wait() -> None:
    simulation, ends = Simulation(1, faults=NONE), {}

    def sleeper(client: Client) -> None:
        client.runtime.sleep(3600)
        ends[client.name] = client.runtime.monotonic()

    simulation.client(sleeper, "a")
    simulation.client(sleeper, "b")
    result = simulation.run()
    assert not result.failed
    assert all(3600 <= end < 3601 for end in ends.values())


def test_every_order_of_two_clients_occurs() -> None:
    def order_of(seed: int) -> str:
        simulation, order = Simulation(seed, faults=NONE), []

        def touch(client: Client) -> None:
            client.db.set(b"key", b"value")
            order.append(client.name)

        simulation.client(touch, "a")
        simulation.client(touch, "b")
        simulation.run()
        return "".join(order)

    assert {order_of(seed) for seed in range(20)} == {"ab", "ba"}


def test_a_lock_admits_one_thread_of_a_machine_at_a_time() -> None:
    for seed in range(20):
        simulation = Simulation(seed, faults=NONE)
        inside: list[str] = []
        worst: list[int] = []

        def client(client: Client, inside: list[str] = inside, worst: list[int] = worst) -> None:
            lock = client.runtime.lock()

            def enter(_: Client) -> None:
                with lock:
                    inside.append("")
                    client.runtime.sleep(1)
                    worst.append(len(inside))
                    inside.pop()

            threads = [client.thread(enter, name) for name in ("a", "b", "c")]
            for thread in threads:
                thread.join()

        simulation.client(client, "machine")
        assert not simulation.run().failed
        assert worst == [1, 1, 1]


def test_a_lock_gives_up_after_its_timeout() -> None:
    simulation = Simulation(1, faults=NONE)
    answers: list[bool] = []

    def client(client: Client) -> None:
        lock = client.runtime.lock()
        assert lock.acquire()
        answers.extend((lock.acquire(timeout=5), lock.acquire(blocking=False)))
        answers.append(client.runtime.monotonic() >= 5)

    simulation.client(client, "only")
    assert not simulation.run().failed
    assert answers == [False, False, True]


def test_no_code_of_a_dead_client_runs() -> None:
    """As after SIGKILL, neither its `finally` nor its other threads run before the checkers have run."""
    simulation = Simulation(1, faults=Faults(die=1.0))
    over: list[bool] = []

    def write(client: Client) -> None:
        try:
            client.db.set(b"key", b"value")
        finally:
            over.append(simulation.scheduler.over)

    def mortal(client: Client) -> None:
        client.thread(write, "other")
        write(client)

    simulation.client(mortal, "mortal")
    result = simulation.run([lambda _, db: [] if db[b"key"] is None else ["it wrote after its death"]])
    assert not result.failed
    assert result.trace.faults["die"] == 1
    assert over
    assert all(over)


def test_a_stalled_client_goes_on_minutes_later() -> None:
    simulation = Simulation(3, faults=Faults(stall=1.0))
    simulation.client(lambda client: client.db.set(b"key", b"value"), "slow")
    result = simulation.run([lambda _, db: [] if db[b"key"] == b"value" else ["it never went on"]])
    assert not result.failed
    assert result.trace.virtual_s > 1


def test_a_kill_of_the_last_client_ends_the_run() -> None:
    simulation = Simulation(1, faults=NONE)
    simulation.client(lambda client: client.runtime.event().wait(), "waiter")
    simulation.kill("waiter", 5)
    assert simulation.run().violations == ()


def test_a_client_that_raises_fails_the_run_and_is_named() -> None:
    def faulty(_: Client) -> None:
        raise ValueError("no luck")

    simulation = Simulation(1, faults=NONE)
    simulation.client(faulty, "unlucky")
    assert simulation.run().violations == ("unlucky raised ValueError('no luck')",)


def test_a_run_in_which_all_clients_wait_is_a_failure() -> None:
    simulation = Simulation(1, faults=NONE)
    simulation.client(lambda client: client.runtime.event().wait(), "waiter")
    assert simulation.run().violations == ("all tasks wait for ever: waiter did not end",)


def test_a_loop_without_an_end_is_a_failure() -> None:
    def loop(client: Client) -> None:
        while True:
            client.db.get(b"key")

    simulation = Simulation(1, faults=NONE, points_max=500)
    simulation.client(loop, "busy")
    assert simulation.run().violations == ("no end after 500 scheduling points: busy did not end",)


def test_clocks_differ_by_no_more_than_the_skew() -> None:
    simulation, clocks = Simulation(1, faults=Faults(clock_skew_s=5.0)), []
    for number in range(20):
        simulation.client(lambda client: clocks.append(client.runtime.now()), f"client-{number}")
    simulation.run()
    assert 1 < max(clocks) - min(clocks) < 5.1


def test_a_simulation_leaves_no_directory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for a run, and for a simulation that never ran."""
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def noted(**kwargs: str) -> str:
        made.append(mkdtemp(**kwargs))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    Simulation(1, faults=NONE).run()
    Simulation(2, faults=NONE)
    gc.collect()
    assert len(made) == 2
    assert [path for path in made if os.path.exists(path)] == []
