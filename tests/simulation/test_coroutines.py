"""Simulated clients that are coroutine functions: virtual time, deaths, several loops at once."""

import asyncio
from collections.abc import AsyncIterator

from fdbqueue import aio
from fdbqueue.testing import Case, Faults, Simulation
from fdbqueue.testing.coroutines import LoopClient
from fdbqueue.testing.simulation import Client
from tests.system.workloads import all_workloads
from tests.system.workloads.common import SPACE

CALM = Faults()


def test_a_sleep_of_a_coroutine_takes_virtual_time() -> None:
    async def sleep(client: LoopClient) -> None:
        began = client.runtime.monotonic()
        await asyncio.sleep(1000)
        client.runtime.now()
        assert 1000 <= client.runtime.monotonic() - began < 1001

    simulation = Simulation(1, faults=CALM)
    simulation.client(sleep, "sleeper")

    assert simulation.run().violations == ()


def test_coroutines_run_on_the_loop_of_their_machine() -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(20):
            await asyncio.sleep(0)
            yield number

    async def ask(client: LoopClient) -> None:
        mine = asyncio.get_running_loop()
        task = asyncio.current_task()
        async for number in numbers():
            await client.db.set(b"%d" % number, client.name.encode())
            assert asyncio.get_running_loop() is mine
            assert asyncio.current_task() is task

    simulation = Simulation(1, faults=CALM)
    for number in range(3):
        simulation.client(ask, f"client-{number}")

    assert simulation.run().violations == ()


def test_blocking_and_awaited_clients_share_one_database() -> None:
    async def put(client: LoopClient) -> None:
        await aio.Queue(SPACE["shared"]).enqueue(client.db, "hello")

    def take(client: Client) -> None:
        assert aio.Queue(SPACE["shared"]).blocking.dequeue(client.db, timeout=60) == "hello"

    simulation = Simulation(1, faults=CALM)
    simulation.client(put, "awaited")
    simulation.client(take, "blocking")

    assert simulation.run().violations == ()


def test_no_cleanup_of_a_dead_machine_runs() -> None:
    cleaned: list[str] = []

    async def die(client: LoopClient) -> None:
        try:
            while True:
                await client.db.get(b"key")
        finally:
            cleaned.append(client.name)

    simulation = Simulation(1, faults=Faults(die=0.05))
    simulation.client(die, "mortal")

    def check(*_: object) -> list[str]:
        return [f"{name} ran its cleanup" for name in cleaned]

    assert simulation.run([check]).violations == ()


def test_an_error_of_a_coroutine_is_a_violation() -> None:
    async def fail(_: LoopClient) -> None:
        raise KeyError("planned")

    simulation = Simulation(1, faults=CALM)
    simulation.client(fail, "failing")

    assert simulation.run().violations == ("failing raised KeyError('planned')",)


def test_an_error_that_no_code_awaits_is_a_violation() -> None:
    async def forget(client: LoopClient) -> None:
        async def fail(_: LoopClient) -> None:
            raise KeyError("planned")

        client.task(fail, "forgotten")

    simulation = Simulation(1, faults=CALM)
    simulation.client(forget, "forgetful")

    assert "KeyError('planned')" in simulation.run().violations[0]


def test_a_coroutine_that_waits_for_ever_is_stuck() -> None:
    async def wait(_: LoopClient) -> None:
        await asyncio.get_running_loop().create_future()

    simulation = Simulation(1, faults=CALM)
    simulation.client(wait, "waiting")

    assert simulation.run().violations == ("all tasks wait for ever: waiting did not end",)


def test_the_same_seed_gives_the_same_trace_of_coroutines() -> None:
    for name in ("awaited_recipe", "awaited_waits", "awaited_tasks"):
        first, second = (Case.of(all_workloads()[name], 7).run().trace.hash() for _ in range(2))
        assert first == second
