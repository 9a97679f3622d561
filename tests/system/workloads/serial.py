"""Processes whose transactions make every call of the engine; a plain model repeats them in one serial order.

Each process has several transactions open at once. Some read at a version that another one has got, have a
timeout or a bound of attempts, watch a key, or go on after a refusal.
"""

from collections.abc import Sequence
from functools import partial
from random import Random

from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.faults import NONE
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.processes import processes_of
from tests.system.workloads.process_checks import versions_grow
from tests.system.workloads.process_strikes import strike_near_commits
from tests.system.workloads.processes import END_S, POINTS_MAX
from tests.system.workloads.serial_attempts import Attempt
from tests.system.workloads.serial_caller import Caller
from tests.system.workloads.serial_checks import in_one_order

THREADS_MAX = 1


@workload(clients=3, steps=30, never=("slow_reply",))
def serial(simulation: Simulation, size: Size) -> Sequence[Checker]:
    simulation.end_at(END_S)
    simulation.scheduler.points_max = 4 * POINTS_MAX
    random, log = Random(f"{simulation.seed} serial"), list[Attempt]()
    is_silent, threads = random.random() < 0.3, [random.randint(0, THREADS_MAX) for _ in range(size.clients)]

    def process(number: int, client: Client) -> None:
        beside = [client.thread(partial(work, f"{one}"), f"{one}") for one in range(threads[number])]
        work("main", client)
        for thread in beside:
            thread.join()

    def work(thread: str, client: Client) -> None:
        Caller(client, f"{client.name}.{thread}", log, is_silent=is_silent).work(size.steps)

    is_private = random.random() < 0.25
    if is_private:  # one process: no other one looks for it, and nothing fails
        simulation.faults = NONE
    begin = simulation.client if is_private else processes_of(simulation).add
    for number in range(size.clients):
        begin(partial(process, number), f"process-{number}")
    fails = not is_private and strike_near_commits(simulation)
    return [in_one_order(log, may_be_unknown=fails, is_silent=is_silent), versions_grow]
