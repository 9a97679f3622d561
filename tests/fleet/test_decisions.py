"""Decisions without a database: delays, turns, starts, and the meaning of errors. The page on workers."""

import logging
import re
from dataclasses import fields
from types import SimpleNamespace

import pytest

from fdbqueue import Backoff, Bury, Event, HeldTask, Hooks, Retry, TaskState
from fdbqueue.core import limits
from fdbqueue.core.errors import DatabaseClosed, InvalidArgument, LeaseLost, NotTaken, StorageFull
from fdbqueue.core.logger import Troubles
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.task import Failure
from fdbqueue.embedded import FDBError
from fdbqueue.fleet.feed import Feed, Start, Starting, start_of
from fdbqueue.fleet.options import WorkerKeywords, WorkerOptions
from fdbqueue.fleet.outcomes import Away, Failed, Lost, is_away, judge
from fdbqueue.tasks.intake import StrideScheduler
from tests.page import page
from tests.support import ManualClock


def test_the_delay_grows_up_to_its_cap():
    backoff = Backoff(first_s=1, growth=3, cap_s=20)
    assert [backoff.delay_s(n, 1.0) for n in (1, 2, 3, 4, 5)] == [1, 3, 9, 20, 20]
    assert backoff.delay_s(10**9, 1.0) == 20


def test_the_delay_is_random_from_a_half_to_the_whole():
    """So tasks that failed together are not ready again together."""
    backoff = Backoff(first_s=8, cap_s=100)
    assert [backoff.delay_s(1, random) for random in (0.0, 0.5, 1.0)] == [4, 6, 8]


@pytest.mark.parametrize(
    "bad", [{"first_s": -1}, {"growth": 0.5}, {"first_s": 2, "cap_s": 1}, {"cap_s": "long"}]
)
def test_an_invalid_backoff_is_refused(bad):
    with pytest.raises(InvalidArgument):
        Backoff(**bad)


def test_each_queue_gets_turns_by_its_weight():
    """With batches of any size, the turns approach the weights."""
    scheduler, got = StrideScheduler({0: 3, 1: 1}), [0, 0]
    for batch in (1, 4, 2, 7, 1, 3) * 40:
        first = scheduler.order([0, 1])[0]
        scheduler.took(first, batch)
        got[first] += batch
    assert abs(got[0] / sum(got) - 0.75) < 0.02


def test_an_empty_queue_saves_up_no_turns():
    scheduler = StrideScheduler({})
    scheduler.order([0, 1])
    for _ in range(100):
        scheduler.took(0, 1)
        scheduler.was_empty(1)
    turns = []
    for _ in range(10):
        turns.append(scheduler.order([0, 1])[0])
        scheduler.took(turns[-1], 1)
    assert 4 <= turns.count(0) <= 6


def test_two_empty_queues_save_up_no_turns():
    scheduler = StrideScheduler({})
    scheduler.order(range(3))
    for _ in range(100):
        for empty in (1, 2):
            scheduler.was_empty(empty)
        scheduler.took(0, 1)
    turns = []
    for _ in range(9):
        turns.append(scheduler.order(range(3))[0])
        scheduler.took(turns[-1], 1)
    assert all(2 <= turns.count(number) <= 4 for number in range(3))


def taken(orphaned=False, lost=False, cancelled=False):
    task = SimpleNamespace(orphaned=orphaned)
    return SimpleNamespace(task=task, lost=lost, cancelled=cancelled, open=True, settled=False)


@pytest.mark.parametrize(
    ("hold", "has_room", "has_suspect", "stopping", "start"),
    [
        (taken(), True, False, False, Start.BEGIN),
        (taken(), True, True, False, Start.BEGIN),
        (taken(), False, False, False, Start.GIVE_BACK),
        (taken(lost=True), True, False, False, Start.GIVE_BACK),
        (taken(), True, False, True, Start.GIVE_BACK),
        (taken(cancelled=True), True, False, False, Start.GIVE_BACK),
        (taken(orphaned=True, cancelled=True), True, False, False, Start.GIVE_BACK),
        (taken(orphaned=True), True, False, False, Start.BEGIN),
        (taken(orphaned=True), True, True, False, Start.PUT_OFF),
        (taken(orphaned=True), False, False, False, Start.PUT_OFF),
        (taken(orphaned=True, lost=True), True, False, False, Start.PUT_OFF),
        (taken(orphaned=True), True, False, True, Start.GIVE_BACK),
    ],
)
def test_which_task_a_worker_begins(hold, has_room, has_suspect, stopping, start):
    assert start_of(hold, has_room, has_suspect, stopping) is start


def test_a_suspect_begins_after_the_commit_of_the_other_outcome():
    """Before it, the second could kill the process, and both would be lost."""
    starting, suspects = Starting(), [taken(orphaned=True) for _ in range(2)]
    assert starting.decide(suspects, 2, False) == [Start.BEGIN, Start.PUT_OFF]
    suspects[0].open = False  # the commit has begun
    assert starting.decide(suspects[1:], 2, False) == [Start.PUT_OFF]
    suspects[0].settled = True
    assert starting.decide(suspects[1:], 2, False) == [Start.BEGIN]


def test_each_option_of_a_worker_is_a_keyword():
    assert list(WorkerKeywords.__annotations__) == [field.name for field in fields(WorkerOptions)]


def test_options_of_a_worker_are_checked_numbers():
    options = WorkerOptions.checked(threads=3, session_ttr_s=float("inf"))
    assert (options.threads, options.session_ttr_s) == (3, limits.SPAN_MAX_S)
    with pytest.raises(TypeError, match="thread"):
        WorkerOptions.checked(thread=3)


@pytest.mark.parametrize("error", [NotTaken(id="x"), LeaseLost(id="x")])
def test_a_lost_lease_is_no_failure_of_the_task(error):
    assert judge(error, "me") == Lost()


@pytest.mark.parametrize("error", [FDBError(1031), FDBError(1009), FDBError(1021), StorageFull("no room")])
def test_a_database_that_is_away_is_no_failure_of_the_task(error):
    assert judge(error, "me") == Away()


@pytest.mark.parametrize("error", [FDBError(1007), KeyError("k"), SystemExit(3), DatabaseClosed()])
def test_every_other_error_is_a_failure_of_the_task(error):
    judgement = judge(error, "me")
    assert isinstance(judgement, Failed)
    assert judgement.failure.error == type(error).__name__


def test_named_verdicts_carry_their_reasons():
    assert judge(Retry(5, "later", "log"), "me") == Failed(Failure("Retry", "later", "log", "me"), 5)
    assert judge(Bury("bad"), "me") == Failed(Failure("Bury", "bad", "", "me"), for_good=True)
    with pytest.raises(InvalidArgument):
        Retry(float("inf"))


def test_a_traceback_begins_in_the_handler():
    def handler():
        raise ValueError("odd")

    try:
        handler()
    except ValueError as error:
        judgement = judge(error, "me")
    assert judgement.failure.detail.startswith("Traceback")
    assert judgement.failure.detail.rstrip().endswith("ValueError: odd")


def test_a_hook_that_raises_is_logged_and_changes_nothing(caplog):
    def bad(_):
        raise ValueError("the hook's own")

    task = HeldTask("ID1", TaskState.TAKEN, None, queue="jobs")
    with caplog.at_level(logging.DEBUG, logger="fdbqueue.worker"):
        Hooks(retried=bad).tell(
            Event("retried", task, 1.5, KeyError("k"), 2.0), Troubles(RealRuntime(), is_away)
        )
    told = [record.getMessage().partition("\n")[0] for record in caplog.records]
    assert told == [
        "task ID1 of jobs: retried after 1.500 s, again in 2.0 s: KeyError: 'k'",
        "the hook 'retried' failed: ValueError: the hook's own",
    ]


def test_a_task_outside_a_worker_is_never_lost():
    task = HeldTask("ID1", TaskState.TAKEN, None, queue="jobs")
    task.check()
    assert not task.lost


def test_a_queue_that_works_again_begins_with_the_first_pause():
    """Else an outage of an hour ago would make the pause of the next one long."""
    clock, fails = ManualClock(), [True]

    def take_many(*_, **__):
        if fails[0]:
            raise ValueError("odd")
        return []

    shape = SimpleNamespace(overtake_of=lambda most: most)
    queues = [(SimpleNamespace(name=name, take_many=take_many, _shape=shape), 1) for name in ("odd", "sound")]
    feed = Feed(SimpleNamespace(runtime=clock, troubles=Troubles(clock)), queues)

    def pause_s():
        feed._take(0, 1, None, 0, clock.event())
        left_s = feed._outages[0].left_s()
        clock.advance(left_s)
        return left_s

    first_s, second_s = pause_s(), pause_s()
    fails[0] = False
    assert pause_s() == 0
    fails[0] = True
    assert (first_s, second_s, pause_s()) == (limits.AWAY_FIRST_S, 2 * limits.AWAY_FIRST_S, first_s)


PAGE = page("docs/workers.md")
STANDARD = {"ProcessPoolExecutor", "SystemExit"}


def test_each_class_on_the_page_is_exported():
    """Of docs/workers.md; classes and errors alike."""
    import fdbqueue
    from fdbqueue.core import errors

    named = set(re.findall(r"`([A-Z]\w+)[`(]", PAGE)) - {*STANDARD, "FDB_NETWORK_OPTION_KNOB"}
    assert {name for name in named if not hasattr(fdbqueue, name) and not hasattr(errors, name)} == set()
