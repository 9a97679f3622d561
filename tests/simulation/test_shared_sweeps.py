"""Processes under one root share the sweeps, counted in virtual time: together they sweep as often as one."""

from fdbqueue import Session, TaskQueue
from fdbqueue.core import limits
from fdbqueue.testing import Client, Faults, Simulation

IDLE_S = 60.0
SWEEPS_PER_S = 1 / (0.75 * limits.SWEEP_EVERY_S) + 1 / limits.SESSIONS_SWEPT_EVERY_S


def opened(client: Client) -> TaskQueue:
    return TaskQueue.create(client.db, "jobs", "fifottl", if_not_exists=True)


def be_idle(client: Client) -> None:
    with Session(client.db) as session:
        opened(client).take(client.db, 0, session=session)
        client.runtime.sleep(IDLE_S)


def transactions_of(processes: int) -> int:
    simulation = Simulation(1, faults=Faults())
    for number in range(processes):
        simulation.client(be_idle, f"idle-{number}")
    result = simulation.run()
    assert not result.failed
    return sum(machine.transactions for machine in simulation._machines)


def test_one_idle_process_sweeps_as_often_as_the_limits_set() -> None:
    assert 0.8 < transactions_of(1) / (IDLE_S * SWEEPS_PER_S) < 1.2


def test_eight_idle_processes_sweep_little_more_than_one() -> None:
    """Each process adds its heartbeats, and a count of the other processes every five seconds."""
    own = 2 * IDLE_S / limits.SWEEPERS_COUNTED_EVERY_S
    assert transactions_of(8) < 1.5 * transactions_of(1) + 8 * own


def test_a_delayed_task_is_ready_soon_although_no_call_waits() -> None:
    """The processes sweep in turns, and one of them sweeps another queue only."""
    simulation, ready_at = Simulation(1, faults=Faults()), []

    def put(client: Client) -> None:
        client.runtime.sleep(10)
        q = opened(client)
        task = q.put(client.db, 1, delay=20)
        due_s = task.until
        while q.statistics(client.db.create_transaction())["tasks"]["delayed"]:
            client.runtime.sleep(0.05)
        ready_at.append(client.runtime.now() - due_s)

    for number in range(8):
        simulation.client(be_idle, f"idle-{number}")
    simulation.client(put, "producer")
    assert not simulation.run().failed
    assert -0.1 < ready_at[0] < limits.SWEEPERS_MAX * limits.SWEEP_EVERY_S
