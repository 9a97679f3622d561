"""Groups: members in two queues that end in every way, also all at once, beside cancels and moves.

Processes die in between. At the end, each group must have ended, and its task has run once.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import (
    GroupClosed,
    GroupNotFound,
    InvalidArgument,
    NotTaken,
    QueueBusy,
    QueueNotFound,
    RepartitionUnderWay,
    TaskNotFound,
)
from fdbqueue.core.page import every_row
from fdbqueue.core.registry import Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.session import Session
from fdbqueue.core.task import Task, TaskState
from fdbqueue.operate.verify.root import compare_members
from fdbqueue.tasks.groups import Group, GroupProgress, group, list_groups
from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from fdbqueue.testing.trace import Trace, unsound
from tests.system.audit.rules import TAKE
from tests.system.workloads.common import cramped
from tests.system.workloads.stage import Tasks, by_chance, outlive, play, taken

KINDS = ("fifo", "fifottl", "utube", "bag")
FINE = (QueueNotFound, GroupClosed)
"""A drop or a cancel may come between any two calls."""
NAME, SECOND, THEN = "groups", "groups-second", "groups-then"
PROMPT_S = 15.0
"""Once faults and members have ended, each group ends within this time."""


def outlive_all(client: Client, q: TaskQueue) -> None:
    for queue in (q, second(client)):
        outlive(client, queue, end)


@workload(clients=2, steps=4)
def groups(simulation: Simulation, size: Size) -> Sequence[Checker]:
    cramped(simulation)
    simulation.limit(DUE_BATCH=3, VERB_BATCH=3, GROUPS_SWEPT_MAX=2, GROUPS_ENDED_MAX=1)
    kind, partitions = simulation.random.choice(KINDS), simulation.random.choice((1, 1, 3))
    ttr_s = None if kind in ("fifo", "utube") else 2
    queue = Tasks(NAME, kind, if_exists="any", ttr=ttr_s, partitions=partitions)

    def produce(client: Client, q: TaskQueue) -> None:
        for step in range(size.steps):
            make(client, q, f"{client.name}.{step}")
            client.pause(0.4)

    def work(client: Client, q: TaskQueue, session: Session) -> None:
        with suppress(QueueNotFound):
            once(client, second(client) if client.random.random() < 0.3 else q, session)
        run_then(client, session)

    def operate(client: Client, q: TaskQueue) -> None:
        disturb(client, q)
        if partitions > 1 and client.random.random() < 0.3:
            with suppress(RepartitionUnderWay):
                q.repartition(client.db, client.random.choice((2, 3, 5)))

    def watch(client: Client, _: TaskQueue) -> None:
        client.calm()  # many reads in one transaction: among frequent faults, it would never end
        for _step in range(2 * size.steps):
            client.pause(0.5)
            look(client)

    roles = {
        "operator": queue.repeating(2 * size.steps, operate, 0.6, pauses_first=True),
        "watcher": queue.using(watch),
        "producer-": queue.using(produce),
        "worker-": queue.working(2 * size.steps, work, lives=2),
    }
    play(simulation, size, roles, {"survivor": queue.using(survive)})
    return [*PROMISES, no_watch_left_behind]


def survive(client: Client, q: TaskQueue) -> None:
    close_all(client)
    outlive_all(client, q)
    until = client.runtime.monotonic() + PROMPT_S
    while client.runtime.monotonic() < until:
        outlive_all(client, q)
        while run_then(client):
            pass
        client.runtime.sleep(1.0)
    look(client)
    client.call(NAME, "left", None, lambda: run(client.db, left))


# Calls.


def second(client: Client) -> TaskQueue:
    """The queue that an operator drops now and then."""
    return TaskQueue.create(client.db, SECOND, "fifottl", ttr=2, if_not_exists=True)


def then_of(client: Client) -> TaskQueue:
    return TaskQueue.create(client.db, THEN, "fifottl", ttr=2, if_not_exists=True)


def make(client: Client, q: TaskQueue, label: str) -> None:
    """Make a group, in one transaction or in several, and put its members."""
    random, then = client.random, then_of(client)
    waits, members = random.random() < 0.5, random.choice((0, 1, 2, 4))
    queue = second(client) if random.random() < 0.3 else q
    with suppress(*FINE):
        if random.random() < 0.5:
            at_once = partial(_at_once, queue, then, label, waits, members)
            client.call(NAME, "make", label, lambda: run(client.db, at_once))
            return
        create = partial(Group.create, client.db, then=(then, label), wait_for_buried=waits)
        id_, _ = client.call(NAME, "make", label, lambda: _made(create(), client.db))
        for number in range(members):
            Group(id_).put(client.db, random.choice((queue, q)), number, **_options(client, q, queue))
            client.pause(0.3)
        Group(id_).close(client.db)


def _options(client: Client, q: TaskQueue, queue: TaskQueue) -> dict[str, float | None]:
    mortal = q.kind == queue.kind == "fifottl"
    return {"ttl": client.random.choice((None, None, 2.0))} if mortal else {}


def _at_once(
    queue: TaskQueue, then: TaskQueue, label: str, waits: bool, members: int, tr: Transaction
) -> tuple[str, str | None]:
    with group(tr, then=(then, label), wait_for_buried=waits) as g:
        for number in range(members):
            g.put(queue, number)
    return _made(g.group, tr)


def _made(made: Group, tr: DatabaseOrTransaction) -> tuple[str, str | None]:
    """The id of a group, and that of its task."""
    return made.id, made.progress(tr).then


def once(client: Client, q: TaskQueue, session: Session) -> None:
    """Take a task, if there is one, and end its lease by chance, or let it end by its time."""
    task = taken(client, q, client.random.choice((0, 1)), session)
    if task is not None:
        client.pause(0.4)
        by_chance(client, q, task, VERBS, (NotTaken, TaskNotFound, InvalidArgument, *FINE))


def put_child(client: Client, q: TaskQueue, task: Task) -> None:
    q.put(client.db, "child", after=task)


VERBS = ("ack", "ack", "release", "bury", "kick", "cancel", put_child, "leave")


def end(client: Client, q: TaskQueue, task: Task) -> None:
    with suppress(NotTaken, TaskNotFound):
        q.ack(client.db, task)


def disturb(client: Client, q: TaskQueue) -> None:
    dice = client.random.random()
    if dice < 0.3:
        found = q.tasks(client.db, client.random.choice("r~!"), 3)
        with suppress(TaskNotFound):
            if found:
                q.delete(client.db, found[-1].id)
    elif dice < 0.45:
        q.truncate(client.db)
    elif dice < 0.65:
        with suppress(QueueBusy, QueueNotFound):
            second(client).drop(client.db)
    elif dice < 0.85:
        found_groups = [one.id for one in list_groups(client.db) if one.parent is None]
        if found_groups:
            id_ = client.random.choice(found_groups)
            client.call(NAME, "cancel group", id_, partial(_cancel, client, Group(id_)))


def _cancel(client: Client, group: Group) -> bool:
    """True unless the group has ended before: then it stays as it is, and its buried members may go on."""
    group.cancel(client.db)
    with suppress(GroupNotFound):
        return group.progress(client.db).cancelled
    return False


def run_then(client: Client, session: Session | None = None) -> bool:
    """Run a task that has started. False if there is none."""
    then = then_of(client)
    task = taken(client, then, 0, session)
    if task is None:
        return False
    with suppress(NotTaken, TaskNotFound):
        client.call(THEN, "ack", task.id, partial(then.ack, client.db, task))
    return True


def look(client: Client) -> None:
    """Look at all groups and tasks of `then` at one version."""
    then = then_of(client)
    client.call(NAME, "audit", None, lambda: run(client.db, lambda tr: list(_early(tr, then))))


def _early(tr: Transaction, then: TaskQueue) -> Iterator[str]:
    started = {task.id for state in "rt" for task in then.tasks(tr, state, 100)}
    for one in all_groups(tr):
        holds = one.buried if one.waits_for_buried else 0
        if one.then in started and (one.left > 0 or one.open or holds):
            yield f"the task of the group {one.id} has started: {one.left} left, {one.buried} buried"
        if one.left < 0:
            yield f"the group {one.id} counts {one.done} done and {one.failed} failed of {one.total}"
        wrong = compare_members(RootKeys(DEFAULT_ROOT), bytes.fromhex(one.id), "", tr)
        if wrong is not None:
            yield wrong.text


def all_groups(target: DatabaseOrTransaction) -> Iterator[GroupProgress]:
    return every_row(partial(list_groups, target))


def close_all(client: Client) -> None:
    for one in all_groups(client.db):
        Group(one.id).close(client.db)


def left(tr: Transaction) -> list[str]:
    """Tell the groups that have not ended, and the tasks that still wait."""
    found = [
        f"the group {one.id} has not ended: {one.left} left, {one.buried} buried"
        for one in all_groups(tr)
        if one.ended is None
    ]
    registry = Registry(DEFAULT_ROOT)
    for name in (NAME, THEN):
        definition = registry.look(tr, name)
        if definition is not None:
            waiting = TaskQueue(tr, registry, definition).tasks(tr, TaskState.DELAYED, 100)
            found += [f"{task.id} waits for the group {task.waits_for}" for task in waiting if task.waits_for]
    return found


# Checkers.


def then_starts_never_early(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no look has seen a started task beside a member that was left."""
    for look in trace.of(NAME, "audit"):
        yield from look.result or ()


def then_starts_once(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each task of `then` was acked at most once."""
    acked = Counter(op.argument for op in trace.of(THEN, "ack") if op.done)
    yield from (f"the task {id_} has run {times} times" for id_, times in acked.items() if times > 1)


def no_group_is_stuck(trace: Trace, _: Database) -> Iterator[str]:
    """Check that each group has ended, and its task has run, if nothing has cancelled it."""
    acked = {op.argument for op in trace.of(THEN, "ack")}
    cancelled = {op.argument for op in trace.of(NAME, "cancel group") if op.result or not op.done}
    for look in trace.of(NAME, "left"):
        yield from look.result or ()
    for op in trace.of(NAME, "make"):
        group, then = op.result if op.done else ("", "")
        if group and group not in cancelled and then not in acked:
            yield f"the task {then} of the group {group} has not run"


def no_cancelled_member_is_taken(trace: Trace, _: Database) -> Iterator[str]:
    """Check that no take that began after the cancel of a group gave one of its members."""
    cancels = [op for op in trace.of(NAME, "cancel group") if op.done and op.result]
    for queue in (NAME, SECOND):
        for take in trace.of(queue, TAKE):
            groups = () if not take.done or take.result is None else take.result.groups
            for cancel in cancels:
                if cancel.argument in groups and cancel.before(take):
                    yield f"{take.client} got {take.result.id} of the cancelled group {cancel.argument}"


def counts_equal_a_scan(_: Trace, database: Database) -> Iterator[str]:
    """Check that a verification finds nothing."""
    yield from unsound(database)


PROMISES: tuple[Checker, ...] = (
    then_starts_never_early,
    then_starts_once,
    no_group_is_stuck,
    no_cancelled_member_is_taken,
    counts_equal_a_scan,
)
