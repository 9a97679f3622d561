"""Threads of a worker: an error at any step ends no lease, and leaves no task unsettled."""

import threading
from collections import Counter

import pytest
from greenlet import GreenletExit

import fdbqueue
from fdbqueue import Backoff, Fleet, Hooks, Retry, TaskQueue, Worker
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded.directory import no_room
from fdbqueue.fleet import supervisor
from fdbqueue.fleet.pool import ThreadPool
from fdbqueue.fleet.settling import Settling
from tests.fleet.conftest import SOON, Beaten, working
from tests.support import PATIENCE_S, wait_until

ERRORS = [KeyError("gone"), TypeError("option"), RuntimeError("can't start new thread"), MemoryError()]


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


@pytest.fixture(autouse=True)
def ended_threads():
    """Worker threads end in their test: pytest blames the running test for the error that ends a thread."""
    before = set(threading.enumerate())  # a test that has failed may have left some
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("fdbqueue-worker"):
            thread.join(PATIENCE_S)


@pytest.fixture
def beaten(db, space):
    """Six leases of two queues, which are due; and no thread can be started."""
    queues = [TaskQueue.create(db, name, "fifottl", ttr=20, root=space) for name in "ab"]
    made = Beaten(db, space, queues, 3, overran=failing(RuntimeError("can't start new thread")))
    for hold in made.holds:
        hold.beat_at = 0.0
    return made


def are_renewed(beaten):
    return all(hold.beat_at > 0 for hold in beaten.holds)


def renew_all_but(bad, error, renew=TaskQueue.renew):
    def renew_some(queue, tr, tasks):
        if bad in [task.id for task in tasks]:
            raise error
        return renew(queue, tr, tasks)

    return renew_some


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("bad", range(6))
@pytest.mark.commits_by_hand
def test_a_lease_that_cannot_be_renewed_ends_no_other(db, beaten, monkeypatch, error, bad):
    until = [hold._ends for hold in beaten.holds]
    monkeypatch.setattr(TaskQueue, "renew", renew_all_but(beaten.holds[bad].task.id, error))
    again_at = beaten.heartbeat._tick()
    assert [hold._ends > was for hold, was in zip(beaten.holds, until, strict=True)] == [
        number != bad for number in range(6)
    ]
    assert again_at < db.runtime.monotonic() + 1, "the one that is left is tried soon"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["chores", "_overran", "_make_amends"])
def test_a_step_of_the_heartbeat_that_fails_costs_no_lease(beaten, monkeypatch, error, step):
    if step == "_overran":
        beaten.heartbeat._timeout_s = 0.0
        beaten.heartbeat.began(beaten.holds[0])
    monkeypatch.setattr(beaten.heartbeat, "_chores" if step == "chores" else step, failing(error))
    beaten.heartbeat._tick()
    assert are_renewed(beaten)


def test_an_overrun_is_ended_once_a_thread_can_be_started(beaten):
    given_up = []
    beaten.heartbeat._timeout_s = 0.0
    beaten.heartbeat.began(beaten.holds[0])
    beaten.heartbeat._tick()
    beaten.heartbeat._overran = given_up.append
    beaten.heartbeat._tick()
    assert given_up == [beaten.holds[0]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [SystemExit(1), GreenletExit()])
def test_a_heartbeat_that_is_ended_is_replaced(beaten, monkeypatch, error):
    beats = threading.Semaphore(0)

    def beat_again():
        beats.release()
        return 0.0

    def end():
        beaten.heartbeat._chores = beat_again
        raise error

    monkeypatch.setattr(beaten.heartbeat, "_chores", end)
    beaten.heartbeat.start()
    assert beats.acquire(timeout=PATIENCE_S)
    beaten.heartbeat.end(PATIENCE_S)
    assert are_renewed(beaten)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_leases_end_if_the_heartbeat_cannot_be_replaced(beaten, monkeypatch):
    monkeypatch.setattr(beaten.heartbeat, "_chores", failing(GreenletExit()))
    monkeypatch.setattr(RealRuntime, "spawn", failing(RuntimeError("can't start new thread")))
    with pytest.raises(GreenletExit):
        beaten.heartbeat._run()
    assert beaten.session.lost
    assert all(hold.lost for hold in beaten.holds)


class Worked:
    """A pool, and the jobs that its threads have done."""

    def __init__(self):
        self.done, self._semaphore = [], threading.Semaphore(0)

    def __call__(self, job):
        self.done.append(job)
        self._semaphore.release()
        if isinstance(job, BaseException):
            raise job
        return True

    def wait_for(self, count):
        assert all(self._semaphore.acquire(timeout=PATIENCE_S) for _ in range(count))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [*ERRORS, SystemExit(1), KeyboardInterrupt(), GreenletExit()])
def test_a_pool_keeps_its_size(db, error):
    worked = Worked()
    pool = ThreadPool(db, 2, worked, db.runtime.event())
    for job in (error, error, error, 1, 2):
        wait_until(pool.free)
        pool.give(job)
    worked.wait_for(5)
    assert pool.wait_for_all(PATIENCE_S)
    assert (pool.free(), Counter(worked.done)) == (2, {error: 3, 1: 1, 2: 1})
    pool.end()


def test_threads_end_with_their_pool_also_after_a_last_job(db):
    begun, may_end = threading.Event(), threading.Event()
    threads = []

    def work(_job):
        threads.append(threading.current_thread())
        begun.set()
        return may_end.wait(PATIENCE_S)

    pool = ThreadPool(db, 1, work, db.runtime.event())
    pool.give("last")
    assert begun.wait(PATIENCE_S)
    pool.end()
    may_end.set()
    threads[0].join(PATIENCE_S)
    assert not threads[0].is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_pool_is_full_again_once_threads_can_be_started(db, monkeypatch):
    worked = Worked()
    pool = ThreadPool(db, 1, worked, db.runtime.event())
    with monkeypatch.context() as patch:
        patch.setattr(RealRuntime, "spawn", failing(RuntimeError("can't start new thread")))
        pool.give(GreenletExit())
        wait_until(lambda: pool._vacant)
    while not pool.wait_for_free(PATIENCE_S):
        pass
    pool.give("next")
    worked.wait_for(2)
    pool.end()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_wait_ends_if_a_thread_cannot_be_replaced(db, monkeypatch):
    """The pool sets `freed`, which ends a wait without a timeout. The next wait starts a thread."""
    freed = db.runtime.event()
    pool = ThreadPool(db, 1, Worked(), freed)
    with monkeypatch.context() as patch:
        patch.setattr(RealRuntime, "spawn", failing(RuntimeError("can't start new thread")))
        pool.give(GreenletExit())
        assert freed.wait(PATIENCE_S)
    pool.end()


class Mute(Exception):
    def __str__(self):
        raise SystemExit(3)


class Liar(Exception):
    @property
    def __class__(self):
        raise SystemExit(4)


class Bare(Retry):
    """A verdict without its fields."""

    def __init__(self):
        pass


def never():
    verdict = Retry(1)
    verdict.delay = float("inf")
    return verdict


ODD = {
    "mute": Mute,
    "liar": Liar,
    "bare": Bare,
    "never": never,
    "syntax": lambda: SyntaxError("x", ("f", 1, "a", "text")),
    "exit": lambda: SystemExit(object()),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("kind", ["fifo", "fifottl"])
def test_an_error_of_any_kind_is_a_failed_attempt(db, space, odd, kind):
    """After an error that cannot be formatted, too, the thread goes on, and the task does not stay taken."""
    queue = TaskQueue.create(db, "odd", kind, root=space)
    ids = [queue.put(db, data).id for data in ("odd", "good")]

    def handler(task):
        if task.data == "odd":
            raise ODD[odd]()

    worker = Worker(db, queue, handler, threads=1, attempts=1, backoff=SOON, root=space)
    worker.run(until_empty=True)
    assert queue.statistics(db)["tasks"]["buried"] == 1
    assert len(queue.failures(db, ids[0])) == 1
    assert worker.status().tally.done == 1


def test_a_failure_that_the_disk_refuses_releases_its_task(db, space, monkeypatch):
    """Leases of this kind have no end, so none would expire."""
    queue, fail, full = (
        TaskQueue.create(db, "full", "fifo", root=space),
        Settling.fail,
        [no_room("data")] * 2,
    )

    def refuse(*arguments):
        if full:
            raise full.pop()
        return fail(*arguments)

    monkeypatch.setattr(Settling, "fail", refuse)
    queue.put(db, 1)
    Worker(db, queue, failing(KeyError("k")), attempts=1, root=space).run(until_empty=True)
    assert queue.statistics(db)["tasks"]["buried"] == 1


@pytest.mark.parametrize("error", [KeyError("k"), SystemExit(1)])
def test_a_hook_may_raise_anything(db, queue, work, error):
    queue.put_many(db, [1, 2])
    hook = failing(error)
    work(lambda _: None, threads=1, hooks=Hooks(started=hook, succeeded=hook))
    assert queue.statistics(db)["tasks"]["done"] == 2


@pytest.mark.parametrize("wrong", [{"hooks": print}, {"hooks": None}, {"backoff": 5}])
def test_hooks_and_backoff_are_checked_when_a_worker_is_made(db, queue, space, wrong):
    with pytest.raises(InvalidArgument, match=next(iter(wrong))):
        Worker(db, queue, print, root=space, **wrong)


def test_the_backoff_of_a_fleet_is_checked_before_its_start(tmp_path):
    with pytest.raises(InvalidArgument, match="backoff"):
        Fleet(f"embedded:{tmp_path}", "jobs", "m:f", backoff=5)


def test_a_worker_that_cannot_start_leaves_no_thread(db, queue, space, monkeypatch):
    spawn, started = RealRuntime.spawn, []

    def spawn_three(runtime, target, name):
        if name == "fdbqueue-worker" and len(started) == 3:
            raise RuntimeError("can't start new thread")
        thread = spawn(runtime, target, name)
        if name == "fdbqueue-worker":
            started.append(thread)
        return thread

    monkeypatch.setattr(RealRuntime, "spawn", spawn_three)
    worker = Worker(db, queue, print, threads=5, root=space)
    with pytest.raises(RuntimeError):
        worker.start()
    for thread in started:
        thread.join(PATIENCE_S)
    assert worker.join(PATIENCE_S)
    assert worker._session.lost
    assert not any(thread.is_alive() for thread in started)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_take_that_fails_once_ends_no_worker(db, queue, space, monkeypatch, error):
    monkeypatch.setattr("fdbqueue.core.limits.AWAY_FIRST_S", 0.01)
    queue.put(db, 1)
    takes, take = [error], TaskQueue.take_many

    def take_later(*arguments, **options):
        if takes:
            raise takes.pop()
        return take(*arguments, **options)

    monkeypatch.setattr(TaskQueue, "take_many", take_later)
    Worker(db, queue, lambda _: None, root=space).run(until_empty=True)
    assert queue.statistics(db)["tasks"]["done"] == 1


def test_a_step_that_fails_at_the_end_skips_no_other(db, queue, space, monkeypatch):
    worker = Worker(db, queue, print, root=space)
    monkeypatch.setattr(Worker, "_finish", failing(SystemExit(1)))
    with working(worker):
        pass
    assert worker._session.lost
    assert worker._heartbeat._ended


def test_a_supervisor_that_cannot_start_a_process_tries_again(tmp_path, monkeypatch):
    """Without processes, descriptors or memory: the running processes go on."""
    url = f"embedded:{tmp_path}"
    monkeypatch.setattr(supervisor, "RESTART", Backoff(first_s=0.01))
    start, failures = supervisor.Process, [OSError(11, "no process"), OSError(24, "too many files")]

    def start_later(*arguments):
        if failures:
            raise failures.pop()
        return start(*arguments)

    monkeypatch.setattr(supervisor, "Process", start_later)
    with fdbqueue.open(url) as db:
        queue = TaskQueue.create(db, "jobs")
        queue.put(db, 1)
        Fleet(url, "jobs", "builtins:id", processes=1, until_empty=True).run()
        assert queue.statistics(db)["tasks"]["done"] == 1
    assert failures == []


def test_a_failing_queue_delays_no_other(db, space, monkeypatch):
    """The failing queue has a pause; the others have none."""
    queues = [TaskQueue.create(db, name, root=space) for name in ("bad", "good")]
    for queue in queues:
        queue.put_many(db, range(10))
    done, take, failures = [], TaskQueue.take_many, []

    def take_good(queue, *arguments, **options):
        if queue.name == "bad" and len(done) < 10:
            failures.append(1)
            raise TypeError("option")
        return take(queue, *arguments, **options)

    monkeypatch.setattr(TaskQueue, "take_many", take_good)
    worker = Worker(db, queues, lambda task: done.append(task.queue), threads=1, root=space)
    worker.run(until_empty=True)
    assert done == ["good"] * 10 + ["bad"] * 10
    assert len(failures) < 10
