"""Fleets of real processes on the durable engines: signals, kills, stalls, hangs, leaks and forks."""

import contextlib
import os
import re
import signal
import time
from functools import partial

import pytest

import fdbqueue
from fdbqueue import Fleet, TaskQueue
from fdbqueue.core.errors import DatabaseNotFound, FleetRefused, InvalidArgument, QueueNotFound
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.fleet import steering
from fdbqueue.fleet.status import Tally
from tests.conftest import DURABLE
from tests.fleet.conftest import HERE, OBEY, gone
from tests.fleet.handlers import KILL_AFTER, SPACE
from tests.interrupting import At, interrupted
from tests.support import wait_until

FAST = {"backoff": fdbqueue.Backoff(0.05, cap_s=0.1), "until_empty": True}
# The tasks of a process that died are free soon. A stall of that length ends a lease, too.
DYING = FAST | {"session_ttr_s": 1.5}


@pytest.fixture(params=DURABLE)
def engine(request):
    return request.param


@pytest.fixture
def queue(db, space):
    return TaskQueue.create(db, "jobs", "fifottl", ttr=2, root=space)


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch, space):
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setenv(SPACE, space.key().hex())


@pytest.fixture
def fleet_of(url, space):
    """A fleet on the queue of the test."""
    return partial(Fleet, url, "jobs", root=space)


@pytest.fixture
def effects(db, space):
    """A function that returns the effects of the handlers, by task."""
    under = space["effects"]
    return lambda: {
        under.unpack(row.key)[0]: int.from_bytes(row.value, "little") for row in db[under.range()]
    }


@pytest.mark.in_turn(4)
def test_each_effect_happens_once_though_workers_are_killed(fleet_of, db, queue, rounds, effects):
    """SIGKILL at random moments. The handlers take long enough for several looks of the fleet."""
    count = rounds(600, 3000)
    for _ in range(count // 100):
        queue.put_many(db, [["sleep", 0.02]] * 100)
    fleet = fleet_of(OBEY, processes=2, threads=4, **DYING)
    kills = []

    def kill_sometimes(status):
        busy = [process for process in status.processes if process.state == "working"]
        acked = queue.statistics(db)["calls"]["ack"]
        if busy and len(kills) < 3 and (len(kills) + 1) * count // 5 <= acked < count:
            kills.append(busy[0].process_id)
            os.kill(busy[0].process_id, signal.SIGKILL)

    fleet.run(kill_sometimes)
    found = effects()
    assert (len(found), set(found.values())) == (count, {1})
    assert kills


def test_a_task_that_kills_its_process_is_buried_alone(fleet_of, db, queue, effects):
    """A lease that ended with its process counts as a failed attempt, and is in the history.

    There may be one failure more than dead processes: the line may have served the request of a dead one.
    """
    poison = queue.put(db, ["die"]).id
    queue.put_many(db, [["nothing"]] * 40)
    fleet = fleet_of(OBEY, processes=2, threads=4, attempts=3, **DYING)
    fleet.run()
    assert 1 <= fleet.status().restarts <= 3
    assert [task.id for task in queue.tasks(db, "!", 10)] == [poison]
    outcomes = [failure.outcome for failure in queue.failures(db, poison)]
    assert len(outcomes) >= 3
    assert set(outcomes[:-1]) | {"lease_lost"} == {"lease_lost"}
    assert outcomes[-1] == "exhausted"
    assert set(effects().values()) == {1}
    assert len(effects()) == 40


@pytest.mark.parametrize("name", ["called", "awaited"])
def test_the_functions_of_a_tasks_run_in_the_processes(fleet_of, db, queue, effects, name):
    functions = {"called": "count", "awaited": "count_later"}
    queue.put_many(db, [{"function": functions[name], "args": [n]} for n in range(20)])
    fleet_of(f"tests.fleet.handlers:{name}", processes=2, **FAST).run()
    assert effects() == dict.fromkeys(range(20), {"called": 1, "awaited": 3}[name])


@pytest.mark.usefixtures("queue")
def test_a_fleet_of_a_single_function_is_refused(fleet_of):
    fleet = fleet_of("tests.fleet.handlers:count", processes=1, **FAST)
    with pytest.raises(FleetRefused, match="handler must be its Tasks"):
        fleet.run()


def test_a_worker_that_stalls_past_its_lease_cannot_ack(fleet_of, db, queue, effects):
    """SIGSTOP while it works; SIGCONT when another worker has done its task."""
    id_ = queue.put(db, ["stop"]).id

    def go_on_when_done(status):
        if not queue.statistics(db)["tasks"]["total"]:
            for process in status.processes:
                os.kill(process.process_id, signal.SIGCONT)

    fleet = fleet_of(OBEY, processes=2, threads=1, **DYING)
    fleet.run(go_on_when_done)
    assert effects() == {id_: 1}
    assert queue.statistics(db)["calls"]["ack"] == 1
    assert fleet.status().tally.lost == 1


def test_an_attempt_of_a_stopped_process_fails(fleet_of, db, queue, effects):
    """SIGSTOP is no outage: the attempt counts, also after SIGCONT."""
    id_ = queue.put(db, ["stop"]).id
    queue.put(db, ["sleep", 4])

    def go_on_when_buried(status):
        if queue.tasks(db, "!", 1):
            for process in status.processes:
                os.kill(process.process_id, signal.SIGCONT)

    fleet = fleet_of(OBEY, processes=2, threads=1, attempts=1, **DYING)
    fleet.run(go_on_when_buried)
    assert id_ not in effects()
    assert (queue.peek(db, id_).state.value, queue.peek(db, id_).failures) == ("!", 1)
    assert [failure.outcome for failure in queue.failures(db, id_)] == ["exhausted"]


def test_sigterm_lets_running_tasks_finish_with_status_0(db, queue, supervise):
    """No more tasks are taken: of ten, the two that run, and those done before."""
    queue.put_many(db, [["sleep", 1.0]] * 10)
    supervisor = supervise(processes=2, threads=1)
    pids = supervisor.wait_until_running(tasks=2)
    supervisor.process.terminate()
    status, said = supervisor.end()
    assert (status, said["restarts"]) == (0, 0)
    assert 2 <= said["ended"]["done"] <= 5
    assert queue.statistics(db)["tasks"]["ready"] == 10 - said["ended"]["done"]
    assert all(gone(pid) for pid in pids)


def test_sigterm_releases_tasks_that_outlast_the_grace(db, queue, supervise):
    """The exit status is 0, and no attempt counts."""
    id_ = queue.put(db, ["sleep", 60]).id
    supervisor = supervise(processes=1, grace_s=0.3)
    supervisor.wait_until_running()
    supervisor.process.terminate()
    assert supervisor.end()[0] == 0
    task = queue.peek(db, id_)
    assert (task.state.value, task.failures) == ("r", 0)


def test_a_second_signal_ends_a_fleet_at_once(db, queue, supervise):
    id_ = queue.put(db, ["sleep", 60]).id
    supervisor = supervise(processes=1, grace_s=60)
    supervisor.wait_until_running()
    supervisor.process.send_signal(signal.SIGINT)
    supervisor.read_until(lambda said: any(state == "stopping" for _, state, _ in said["processes"]))
    began = time.monotonic()
    supervisor.process.send_signal(signal.SIGINT)
    assert supervisor.end()[0] == 0
    assert time.monotonic() - began < 40  # of a grace of 60
    assert queue.peek(db, id_).state.value == "r"


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize("by", ["signal", "call"])
def test_a_stop_at_once_may_interrupt_another_stop(fleet_of, by):
    """A second signal, too, may come in the handler of the first one."""
    number, came = 0, True
    while came:
        number, fleet = number + 1, fleet_of(OBEY)
        first, second = fleet.stop, partial(fleet.stop, at_once=True)
        if by == "signal":
            first, second = (
                partial(fleet._signalled, name, None) for name in (signal.SIGINT, signal.SIGTERM)
            )
        came = interrupted(At(number, second, __file__), first)
        assert fleet._stops == (2 if came else 1)
    assert number > 1


def test_a_busy_process_hears_that_it_must_stop_at_once(fleet_of, db, queue):
    """Two pending signals of one number arrive as one, which would only begin the grace."""
    queue.put(db, ["sleep", 60])
    fleet, still, began = fleet_of(OBEY, processes=1, threads=1, grace_s=60), [], []

    def tick(status):
        if status.running and not began:
            still.append(status.processes[0].process_id)
            os.kill(still[0], signal.SIGSTOP)
            began.append(time.monotonic())
            fleet.stop(at_once=True)
        elif still and time.monotonic() > began[0] + 0.5:
            os.kill(still.pop(), signal.SIGCONT)

    fleet.run(tick)
    assert time.monotonic() - began[0] < 40  # of a grace of 60
    assert queue.statistics(db)["tasks"]["ready"] == 1


@pytest.mark.commits_by_hand
def test_workers_end_when_their_supervisor_is_killed(db, queue, supervise):
    """They finish their running tasks, and end."""
    queue.put_many(db, [["sleep", 0.5]] * 20)
    supervisor = supervise(processes=2, threads=1)
    pids = supervisor.wait_until_running(tasks=2)
    supervisor.process.kill()
    wait_until(lambda: all(gone(pid) for pid in pids))
    assert queue.statistics(db)["tasks"]["taken"] == 0


@pytest.mark.commits_by_hand
@pytest.mark.parametrize(
    ("handler", "deed"),
    [(OBEY, "leave a thread"), (OBEY, "leave a child"), ("tests.fleet.handlers:stand_still", "")],
)
def test_a_worker_that_cannot_end_does_not_outlive_its_fleet(
    db, queue, supervise, monkeypatch, handler, deed
):
    """The supervisor was killed, and cannot kill it."""
    monkeypatch.setenv(KILL_AFTER, "1")
    queue.put_many(db, [[deed], ["sleep", 1.0]])
    supervisor = supervise(processes=1, threads=2, grace_s=0.3, handler=handler)
    (pid,) = supervisor.wait_until_running()
    try:
        wait_until(lambda: not queue.statistics(db)["tasks"]["ready"])
        supervisor.process.kill()
        wait_until(lambda: gone(pid), 100)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_process_that_dies_is_replaced(fleet_of, db, queue, effects):
    """A process that ends with status 0 without a stop is replaced, too."""
    queue.put(db, ["exit"])
    queue.put(db, ["nothing"])
    fleet = fleet_of(OBEY, processes=1, threads=1, attempts=1, **DYING)
    fleet.run()
    assert fleet.status().restarts == 1
    assert (len(effects()), queue.statistics(db)["tasks"]["buried"]) == (1, 1)


def test_the_counts_of_a_run_are_exact_though_processes_die(fleet_of, db, queue):
    """The reports of a dead process are lost; the row of the run has its counts."""
    queue.put_many(db, [["bury"], ["die first"], ["raise"], *[["nothing"]] * 5], ttr=10)
    # The handler ends its process at its first attempt. With a short lease, that attempt may end in a stall.
    fleet = fleet_of(OBEY, processes=1, threads=1, attempts=2, **DYING | {"session_ttr_s": 5})
    fleet.run()
    assert fleet.status().restarts == 1
    assert fleet.status().tally == Tally(done=6, failed=1, buried=2, lost=1)
    # The fleet may have stopped before the last row of the dead session was cleared.
    keeper_of(db, RootKeys(fleet._root)).tick()
    assert run_keys(db, fleet) == []


def test_each_fleet_on_a_queue_counts_its_own_outcomes(url, space, db, queue, supervise):
    """A fleet that waits for an empty queue does not count the burials of another."""
    queue.put(db, ["sleep", 1.0])
    other = supervise(processes=1, threads=1, until_empty=True)
    other.wait_until_running()
    queue.put_many(db, [["bury"]] * 3)
    fleet = Fleet(url, "jobs", OBEY, processes=1, threads=1, root=space, **FAST)
    fleet.run()
    _, said = other.end()
    counts = [(fleet.status().tally.done, fleet.status().tally.buried)]
    counts += [(said["ended"]["done"], said["ended"]["buried"])]
    assert (sum(done for done, _ in counts), sum(buried for _, buried in counts)) == (1, 3)
    assert counts[1][0] == 1


def run_keys(db, fleet):
    """The rows of all runs under the root, and the runs of all sessions."""
    keys = RootKeys(fleet._root)
    under = (keys.run(b"")[:-2], keys.membership(b"")[:-2])
    return [row.key for prefix in under for row in db.get_range_startswith(prefix)]


def test_a_process_that_dies_is_logged_with_its_task(fleet_of, db, queue, caplog):
    """The log names the task even if it has just begun, and no report has it."""
    id_ = queue.put(db, ["exit 9"]).id
    fleet_of(OBEY, processes=1, threads=1, attempts=1, **DYING).run()
    [line] = [record.getMessage() for record in caplog.records if "ended" in record.getMessage()]
    assert re.fullmatch(
        rf"process \d+ ended with status 9 while at task {id_} of jobs; another starts in .* s", line
    )


@pytest.mark.commits_by_hand
def test_the_processes_log_with_the_time(fleet_of, db, queue, capfd):
    queue.put(db, ["raise"])
    fleet_of(OBEY, processes=1, attempts=2, **FAST).run()
    retried, buried = capfd.readouterr().err.splitlines()
    assert re.match(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING \[\d+\] task \w+ of jobs: retried", retried
    )
    assert re.match(r"[-\d]+ [:,\d]+ ERROR \[\d+\] task \w+ of jobs: buried", buried)


def test_a_level_silences_the_lines_below_it(fleet_of, db, queue, capfd):
    queue.put(db, ["raise"])
    fleet_of(OBEY, processes=1, attempts=2, log_level="error", **FAST).run()
    assert [line.split()[2] for line in capfd.readouterr().err.splitlines()] == ["ERROR"]


@pytest.mark.in_turn(4)
def test_a_process_that_leaks_memory_is_recycled(fleet_of, db, queue, effects):
    """Soon after its memory is above the limit, and without a lost task."""
    queue.put_many(db, [["leak", 60]] * 6)
    fleet, most = fleet_of(OBEY, processes=1, threads=1, recycle_mb=200, **FAST), []
    fleet.run(lambda status: most.append(max((p.rss_bytes for p in status.processes), default=0)))
    assert set(effects().values()) == {1}
    assert len(effects()) == 6
    assert fleet.status().recycled >= 1
    assert fleet.status().restarts == 0


@pytest.mark.in_turn(4)
def test_a_process_is_recycled_after_its_number_of_tasks(fleet_of, db, queue, effects):
    queue.put_many(db, [["sleep", 0.02]] * 300)  # so long that the supervisor sees the number before the end
    fleet = fleet_of(OBEY, processes=1, threads=2, recycle_tasks=50, **FAST)
    fleet.run()
    assert len(effects()) == 300
    assert fleet.status().recycled >= 1
    assert fleet.status().restarts == 0


@pytest.mark.in_turn(4)
def test_tasks_that_fail_count_for_the_number_of_a_process(fleet_of, db, queue):
    queue.put_many(db, [["raise", 0.02]] * 150)
    fleet = fleet_of(OBEY, processes=1, threads=2, recycle_tasks=50, attempts=2, **FAST)
    fleet.run()
    assert queue.statistics(db)["tasks"]["buried"] == 150
    assert fleet.status().recycled >= 1


def test_drained_processes_are_not_replaced(fleet_of, db, queue, space, effects):
    """The fleet ends with the last one. It loses and repeats nothing."""
    queue.put_many(db, [["sleep", 0.05]] * 1_000)  # more than they do until both have obeyed
    fleet, keys, drained = fleet_of(OBEY, processes=2, threads=1, **FAST), RootKeys(space), []

    def drain(status):
        found = [one for one in steering.members(db, keys) if one.place not in drained]
        if found and len(drained) == status.drained:
            drained.append(found[0].place)
            steering.drain(db, keys, found[:1])

    fleet.run(drain)
    status = fleet.status()
    assert (status.drained, status.restarts, len(drained)) == (2, 0, 2)
    assert set(effects().values()) <= {1}
    assert queue.statistics(db)["tasks"]["done"] == len(effects())


def test_a_stop_at_once_reaches_a_recycled_process(fleet_of, db, queue):
    """Its other task runs for an hour. The stop releases it."""

    def stop(status):
        if any(process.state == "retiring" for process in status.processes):
            fleet.stop(at_once=True)

    queue.put_many(db, [["sleep", 3600], ["nothing"]])
    fleet = fleet_of(OBEY, processes=1, threads=2, recycle_tasks=1, grace_s=3600)
    fleet.run(stop)
    tasks = queue.statistics(db)["tasks"]
    assert (tasks["ready"], tasks["taken"]) == (1, 0)


@pytest.mark.commits_by_hand
def test_a_handler_that_hangs_costs_its_process_at_most(fleet_of, db, queue, effects):
    """The attempt fails after the timeout; the process finishes its other tasks, and is replaced."""
    hanging = queue.put(db, ["sleep", 3600]).id
    queue.put_many(db, [["nothing"]] * 20)
    fleet = fleet_of(OBEY, processes=1, threads=2, timeout_s=0.5, attempts=2, **FAST)
    fleet.run()
    assert [failure.error for failure in queue.failures(db, hanging)] == ["Timeout", "Timeout"]
    assert len(effects()) == 20
    assert fleet.status().recycled >= 1


def test_a_handler_that_forks_acks_once(fleet_of, db, queue, effects):
    """The child neither acks nor takes."""
    queue.put_many(db, [["fork"], ["sub"], ["fork"]])
    fleet_of(OBEY, processes=1, threads=2, **FAST).run()
    assert queue.statistics(db)["calls"]["ack"] == 3
    assert set(effects().values()) == {1}


def test_a_fleet_runs_transactional_handlers(fleet_of, db, queue, effects):
    queue.put_many(db, range(50))
    fleet_of("tests.fleet.handlers:transactional", transactional=True, **FAST).run()
    assert effects() == dict.fromkeys(range(50), 1)


def test_a_factory_makes_the_handler_of_its_argument(fleet_of, db, queue, space):
    id_ = queue.put(db, 1).id
    fleet_of("tests.fleet.handlers:factory", processes=1, argument="told", **FAST).run()
    assert db[space["effects"][id_].key()] == b"told"


def test_hooks_are_named_like_handlers(fleet_of, db, queue, capfd):
    queue.put(db, ["raise"])
    hooks = "tests.fleet.handlers:hooks"
    fleet_of(OBEY, processes=1, attempts=2, hooks=hooks, **FAST).run()
    assert "hooked retried ['raise']" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        ("no.such.module:handler", "importing no.such.module fails"),
        ("tests.fleet.exits:handler", "SystemExit: 3"),
        ("tests.fleet.handlers:missing", "tests.fleet.handlers has no missing"),
        ("tests.fleet.handlers:not_callable", "it cannot be called"),
        ("handler", 'written as "module:function"'),
        ("tests.deferred:generator", "tests.deferred:generator is a generator function: a handler returns"),
    ],
)
def test_a_handler_that_cannot_be_imported_is_refused(fleet_of, db, queue, handler, why):
    """With an error of one line, and before a take."""
    queue.put(db, 1)
    with pytest.raises(FleetRefused, match=why) as refusal:
        fleet_of(handler, processes=1).run()
    assert "\n" not in str(refusal.value)
    assert queue.statistics(db)["calls"]["take"] == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"handler": "tests.fleet.handlers:failing_factory", "argument": "this"}, "no handler for this"),
        ({"handler": "tests.deferred:async_factory", "argument": 1}, "it returned a coroutine"),
        (
            {"handler": "tests.deferred:factory_of_generator", "argument": 1},
            "handler must be a plain function",
        ),
        ({"handler": OBEY, "hooks": "tests.deferred:make_hooks"}, "it is not an fdbqueue.Hooks"),
    ],
)
@pytest.mark.usefixtures("queue")
def test_a_factory_that_makes_no_handler_is_refused(fleet_of, options, why):
    with pytest.raises(FleetRefused, match=why):
        fleet_of(processes=1, **options).run()


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"queues": "missing"}, QueueNotFound),
        ({"url": "memory:"}, InvalidArgument),
        ({"url": "embedded:/no/such/directory"}, DatabaseNotFound),
        ({"processes": 0}, InvalidArgument),
        ({"threads": 0}, InvalidArgument),
        ({"recycle_mb": 0}, InvalidArgument),
        ({"recycle_tasks": 0}, InvalidArgument),
        ({"log_level": "loud"}, InvalidArgument),
        ({"queues": {}}, InvalidArgument),
    ],
)
@pytest.mark.usefixtures("queue")
def test_wrong_arguments_are_refused_before_a_start(url, space, bad, error):
    with pytest.raises(error):
        Fleet(**{"url": url, "queues": "jobs", "handler": OBEY, "root": space, **bad})


@pytest.mark.usefixtures("queue")
def test_signal_handlers_are_restored_at_the_end(fleet_of):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    fleet_of(OBEY, processes=1, **FAST).run()
    assert [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


@pytest.mark.usefixtures("queue")
def test_a_fleet_that_is_interrupted_leaves_no_process(fleet_of):
    """Also if `on_tick` raises."""
    pids = []

    def fail(status):
        pids.extend(process.process_id for process in status.processes)
        if any(process.state == "working" for process in status.processes):
            raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        fleet_of(OBEY, processes=2).run(fail)
    assert pids
    assert all(gone(pid) for pid in pids)
