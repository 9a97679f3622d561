"""The transactions of requests that wait in a line, counted in virtual time."""

from fdbqueue.testing import Client, Faults, Simulation
from tests.system.workloads.common import queue

WAITERS = 10
WAITED_S = 60.0
SIGNS_MAX = 2 * WAITED_S / 0.7 + 5  # a sign of life after 0.35 to 0.7 s
EACH_MAX = 2 * WAITED_S / 4 + 5  # a renewal after 2 to 4 s; the first request looks every 1 to 2 s


def transactions_of_waiters(**bounds: float) -> int:
    simulation, line = Simulation(1, faults=Faults()), queue("line")
    simulation.limit(**bounds)
    simulation.gives_signs = True

    def wait(client: Client) -> None:
        line.dequeue(client.db, timeout=WAITED_S)

    for number in range(WAITERS):
        simulation.client(wait, f"waiter-{number}")
    result = simulation.run()
    assert not result.failed
    return len(result.trace.transactions)


def test_a_waiting_request_makes_a_transaction_per_sign_of_life() -> None:
    assert transactions_of_waiters() <= WAITERS * SIGNS_MAX


def test_a_long_line_gives_no_signs_of_life() -> None:
    assert transactions_of_waiters(SERVE_MAX=5) <= WAITERS * EACH_MAX


def test_a_request_behind_dead_ones_gets_an_item_soon() -> None:
    simulation, line = Simulation(1, faults=Faults()), queue("line")
    got: dict[str, float] = {}

    def die(client: Client) -> None:
        client.runtime.spawn(lambda: line.dequeue(client.db, timeout=60.0), "waits")
        client.runtime.sleep(1)
        simulation.scheduler.die(client.runtime.host)

    def wait(client: Client) -> None:
        client.runtime.sleep(2)
        line.dequeue(client.db, timeout=60.0)
        got["at"] = client.runtime.monotonic()

    def put(client: Client) -> None:
        client.runtime.sleep(20)
        got["put"] = client.runtime.monotonic()
        line.enqueue(client.db, "a")

    for number in range(5):
        simulation.client(die, f"dead-{number}")
    simulation.client(wait, "alive")
    simulation.client(put, "producer")
    result = simulation.run()
    assert not result.failed
    assert got["at"] - got["put"] < 0.1


def test_a_request_is_woken_after_a_renewal_in_doubt() -> None:
    """The watches of a renewal end with its commit, if its result is unknown: the request arms others."""
    simulation, line = Simulation(1, faults=Faults(unknown_done=1.0)), queue("line")
    late_s: list[float] = []

    def wait_calmly(client: Client) -> None:
        client.calm()
        line.dequeue(client.db, timeout=60.0)

    def wait_in_doubt(client: Client) -> None:
        client.runtime.sleep(1)
        value = line.dequeue(client.db, timeout=60.0)
        late_s.append(client.runtime.monotonic() - value)

    def put(client: Client) -> None:
        client.calm()
        client.runtime.sleep(10)
        line.enqueue_many(client.db, ["for the first request"])
        client.runtime.sleep(0.1)
        line.enqueue(client.db, client.runtime.monotonic())

    for client in (wait_calmly, wait_in_doubt, put):
        simulation.client(client, client.__name__)
    assert not simulation.run().failed
    assert late_s[0] < 0.1
