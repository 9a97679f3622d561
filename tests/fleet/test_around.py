"""Setup and teardown: once in each process, before the first take and after the last task."""

import asyncio
import json
import signal
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fdbqueue import Database, Fleet, TaskQueue, TaskState, Worker, workers
from fdbqueue.core.errors import DatabaseClosed, DeferredBody, FleetRefused, InvalidArgument
from fdbqueue.testing import Faults, Simulation
from tests.conftest import DURABLE
from tests.fleet.conftest import HERE, OBEY, Run
from tests.fleet.handlers import SPACE
from tests.support import PATIENCE_S, wait_until

Make = Callable[..., Worker]


async def asynchronous(_: Any) -> None: ...


def plain(_: Any) -> None: ...


@pytest.fixture(params=[plain, asynchronous], ids=["threads", "loop"])
def make(request: pytest.FixtureRequest, db: Database, space: Any, queue: TaskQueue) -> Make:
    """Make a worker of each sort; `handler` is a plain function of a task."""

    def worker_of(handler: Callable[..., object] = plain, **options: Any) -> Worker:
        async def on_loop(task: Any) -> object:
            return handler(task)

        chosen = handler if request.param is plain else on_loop
        return Worker(db, queue, chosen, root=space, **options)

    return worker_of


def test_each_runs_once_around_all_tasks(db: Database, queue: TaskQueue, make: Make) -> None:
    told: list[Any] = []
    queue.put_many(db, range(9))
    handler = lambda task: told.append(task.data)  # noqa: E731
    begin, end = partial(told.append, "setup"), partial(told.append, "teardown")

    make(handler, setup=begin, teardown=end).run(until_empty=True)

    assert (told[0], told[-1]) == ("setup", "teardown")
    assert sorted(told[1:-1]) == [*range(9)]


def test_coroutine_functions_run_on_the_loop_of_the_handler(
    db: Database, space: Any, queue: TaskQueue
) -> None:
    loops: list[Any] = []

    async def note(*_: Any) -> None:

        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    queue.put(db, "x")
    Worker(db, queue, note, root=space, setup=note, teardown=note).run(until_empty=True)

    assert len(loops) == 3
    assert len(set(map(id, loops))) == 1


def test_a_setup_that_fails_is_an_outage_and_no_failed_attempt(
    db: Database, space: Any, queue: TaskQueue, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    opens: list[bool] = []

    def begin() -> None:
        told.append("setup")
        if not opens:
            raise ConnectionError("no route to the pool")

    task = queue.put(db, "x")
    worker = make(lambda _: told.append("task"), setup=begin, teardown=lambda: told.append("teardown"))
    worker.start()
    wait_until(lambda: any("no route" in one.trouble for one in workers(db, root=space)))
    wait_until(lambda: told.count("setup") > 1)
    found = queue.peek(db, task.id)
    assert (found.state, found.attempts, found.failures) == (TaskState.READY, 0, 0)
    assert worker.status().trouble == "setup: ConnectionError: no route to the pool"
    assert queue.explain(db, task.id).workers == 0
    assert "setup has failed, and is called again" in caplog.text

    opens.append(True)
    wait_until(lambda: "task" in told)
    wait_until(lambda: all(not one.trouble for one in workers(db, root=space)))
    assert queue.explain(db, queue.put(db, "next", delay=60).id).workers == 1
    worker.stop()
    assert worker.join(PATIENCE_S)
    assert told[told.index("task") :] == ["task", "teardown"]


def test_a_stop_ends_the_wait_for_a_setup(make: Make) -> None:
    told: list[str] = []

    def begin() -> None:
        told.append("setup")
        raise SystemExit(3)  # it ends no thread

    worker = make(setup=begin, teardown=lambda: told.append("teardown"))
    run = Run(worker)
    wait_until(lambda: told)
    worker.stop()
    assert run.end() is None
    assert "teardown" not in told


def test_until_empty_waits_for_the_setup(make: Make) -> None:
    """Whether the queue is empty is for a worker that can work."""
    fails = [True] * 3

    def begin() -> None:
        if fails:
            raise ValueError(fails.pop())

    worker = make(setup=begin)
    worker.run(until_empty=True)
    assert (fails, worker.emptied) == ([], True)


def test_a_closed_database_ends_the_wait_for_a_setup(db: Database, make: Make) -> None:
    told: list[str] = []

    def begin() -> None:
        told.append("setup")
        raise ValueError

    run = Run(make(setup=begin))
    wait_until(lambda: told)
    db.close()
    assert isinstance(run.end(), DatabaseClosed)


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_teardown_that_fails_is_logged_and_the_worker_ends(
    make: Make, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def end() -> None:
        raise error("cannot close")

    worker = make(teardown=end)
    worker.run(until_empty=True)
    assert worker.status().state == "ended"
    assert "teardown has failed; the worker ends all the same" in caplog.text


def test_the_pauses_of_a_setup_grow() -> None:
    at: list[float] = []

    def work(client: Any) -> None:
        def begin() -> None:
            at.append(client.runtime.monotonic())
            if len(at) < 5:
                raise ValueError

        TaskQueue.create(client.db, "jobs")
        Worker(client.db, "jobs", plain, setup=begin).run(until_empty=True)

    simulation = Simulation(0, faults=Faults())
    simulation.client(work, "worker")
    assert simulation.run().violations == ()
    pauses = [later - before for before, later in pairwise(at)]
    assert len(pauses) == 4
    assert all(later > 1.5 * before for before, later in pairwise(pauses))


def generator() -> Any:
    yield


async def asynchronous_generator() -> Any:
    yield


NO_SETUP = [1, "module:function", generator, asynchronous_generator, lambda needed: needed]


@pytest.mark.parametrize("name", ["setup", "teardown"])
@pytest.mark.parametrize("wrong", NO_SETUP)
def test_what_cannot_be_called_once_is_refused(make: Make, name: str, wrong: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(**{name: wrong})
    assert caught.value.name == name


def test_a_coroutine_function_needs_a_worker_with_a_loop(db: Database, space: Any, queue: TaskQueue) -> None:
    async def begin() -> None: ...

    with pytest.raises(DeferredBody, match=r"asyncio\.run"):
        Worker(db, queue, plain, root=space, setup=begin)


@pytest.mark.parametrize("wrong", ["setup", ":setup", "module:", 3, plain])
def test_a_fleet_refuses_what_is_no_name(url: str, space: Any, queue: TaskQueue, wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        Fleet(url, queue.name, OBEY, root=space, setup=wrong)


class TestProcesses:
    """Fleets of real processes: each notes its calls in a file."""

    @pytest.fixture(params=DURABLE)
    def engine(self, request: pytest.FixtureRequest) -> str:
        return request.param

    @pytest.fixture
    def notes(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, space: Any) -> Callable[[], list[Any]]:
        monkeypatch.syspath_prepend(str(HERE))
        monkeypatch.setenv(SPACE, space.key().hex())
        monkeypatch.setenv("FDBQUEUE_TEST_NOTES", str(tmp_path / "notes"))
        (tmp_path / "notes").touch()
        return lambda: [json.loads(line) for line in (tmp_path / "notes").read_text().splitlines()]

    OPTIONS = {"setup": "tests.fleet.around:begin", "teardown": "tests.fleet.around:end"}

    def test_recycled_processes_run_both(
        self, url: str, space: Any, db: Database, queue: TaskQueue, notes: Callable[[], list[Any]]
    ) -> None:
        queue.put_many(db, [["sleep", 0.01]] * 60)
        fleet = Fleet(
            url,
            "jobs",
            OBEY,
            root=space,
            processes=1,
            threads=1,
            recycle_tasks=10,
            until_empty=True,
            **self.OPTIONS,
        )
        fleet.run()
        assert fleet.status().recycled
        told = notes()
        begun = [pid for what, pid in told if what == "begin"]
        assert len(begun) == len(set(begun)) > 1
        assert sorted(begun) == sorted(pid for what, pid in told if what == "end")

    def test_a_drained_process_tears_down_behind_its_last_task(
        self,
        supervise: Callable[..., Any],
        db: Database,
        queue: TaskQueue,
        notes: Callable[[], list[Any]],
    ) -> None:
        queue.put(db, ["sleep", 1])
        fleet = supervise(processes=1, grace_s=PATIENCE_S, **self.OPTIONS)
        [pid] = fleet.wait_until_running()
        fleet.process.send_signal(signal.SIGTERM)
        fleet.end()
        assert notes() == [["begin", pid], ["end", pid]]
        assert queue.statistics(db)["ends"]["acked"] == 1

    @pytest.mark.parametrize("target", ["tests.fleet.around:nothing", "tests.fleet.around:generator"])
    def test_a_function_that_no_process_can_use_refuses_the_fleet(
        self, url: str, space: Any, queue: TaskQueue, notes: Callable[[], list[Any]], target: str
    ) -> None:
        with pytest.raises(FleetRefused, match=target.partition(":")[2]):
            Fleet(url, queue.name, OBEY, root=space, processes=1, setup=target).run()
        assert notes() == []
