"""Diagnosis: the checks of one database, one after the other, with a pause between two looks.

Those of queues are here: the figures of all queues at two looks, and groups that buried members hold; limits
that are unreadable or missing, and full ones with holders of dead sessions; schedules that cannot be fired,
and those that no process passes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil
from operator import itemgetter
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import is_number, key_bytes
from fdbqueue.core.database import Database, as_database, run
from fdbqueue.core.errors import DatabaseClosed, InvalidArgument, QueueNotFound
from fdbqueue.core.page import Page, every_row
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import AnyDatabase, Transaction
from fdbqueue.core.sessions.ending import ask_holder
from fdbqueue.core.task import LimitHolder
from fdbqueue.core.visible import counted, text_of, told
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.fleet.steering import members, paused
from fdbqueue.operate import checks
from fdbqueue.operate.checks import Check, Diagnosis, Look, failure, fine, warning
from fdbqueue.operate.figures import (
    Figures,
    GroupsFigures,
    KeyFigures,
    LimitFigures,
    QueueFigures,
    TaskFigures,
    is_full,
    is_mostly_buried,
    stored_in,
    way_to_room,
)
from fdbqueue.operate.overview import Overview
from fdbqueue.operate.verify.values import command
from fdbqueue.tasks.dead_letters import DeadLetters
from fdbqueue.tasks.ending import held_by
from fdbqueue.tasks.firing import ScheduleStatus
from fdbqueue.tasks.limits.rule import LimitKeys, shown_key
from fdbqueue.tasks.limits.shown import ask_holders, key_states
from fdbqueue.tasks.limits.state import ask_by_snapshot
from fdbqueue.tasks.rows import cure_of_hung
from fdbqueue.tasks.schedules import page
from fdbqueue.tasks.stored.records import HANDED_OFF

QUEUES = "queues"


def see_failing(database: Database, root: Any, figures: Figures) -> dict[str, tuple[str | None, int]]:
    """The class of failure that most buried tasks have, and their number, of the first full queues of which
    such tasks are the most. Round trips: 4 for each of these queues.
    """
    those = ((one.name, one.tasks) for one in figures.queues if one.tasks is not None)
    full = (name for name, tasks in those if is_full(tasks) and is_mostly_buried(tasks))
    found = {}
    for name in islice(full, limits.DIAGNOSED_FULL_QUEUES_MAX):
        with suppress(QueueNotFound):  # dropped since the look
            for most in DeadLetters.open(database, name, root=root).classes(database, 1):
                found[name] = most.error, most.tasks
    return found


def check_queues(
    first: Figures, second: Figures, failing: Mapping[str, tuple[str | None, int]] | None = None
) -> list[Check]:
    """The results for all queues that exist at both looks; one that counts them if all are fine."""
    before, seconds, known = first.by_name, max(second.now - first.now, 0.001), failing or {}
    found = [
        result
        for queue in second.queues
        for result in _of_queue(before.get(queue.name, queue), queue, seconds, known.get(queue.name, ()))
    ]
    text = f"{counted(len(second.queues), 'queue')}, {counted(second.workers, 'live worker')}"
    return found or [fine(QUEUES, text, queues=len(second.queues), workers=second.workers)]


def _of_queue(
    before: QueueFigures, queue: QueueFigures, seconds: float, failing: Sequence[Any]
) -> Iterator[Check]:
    name = queue.name
    if queue.error is not None:
        cure = "Read it with the release, or the codec, that made it."
        yield failure(QUEUES, f"{name} cannot be read: {queue.error}", cure, queue=name)
    if queue.unreadable:
        text = f"{name} has set aside {counted(queue.unreadable, 'value')} that could not be read"
        yield warning(QUEUES, text, command("aside", name), queue=name, unreadable=queue.unreadable)
    if queue.tasks is not None and before.tasks is not None:
        yield from _idle(name, before.tasks, queue.tasks)
        yield from _hanging(name, queue.tasks)
        yield from _stored(name, queue.tasks, failing)
        yield from _key_waits(name, before.tasks, queue.tasks)
        yield from _hot(name, before.tasks, queue.tasks, seconds)
        yield from _repartition(name, before.tasks, queue.tasks)
        yield from _sparse(name, before.tasks, queue.tasks, seconds)


def _idle(name: str, before: TaskFigures, now: TaskFigures) -> Iterator[Check]:
    """A queue with ready tasks of which none is taken: it is paused, or nothing takes from it."""
    if not now.ready or now.calls["take"] != before.calls["take"]:
        return
    if now.paused:
        text = f"{name} is paused, with {counted(now.ready, 'ready task')}"
        yield warning(QUEUES, text, command("resume", name), queue=name, ready=now.ready)
    elif not now.workers:
        text = f"{name} has {counted(now.ready, 'ready task')} and no live worker"
        yield warning(QUEUES, text, command("work", name, "MODULE:FUNCTION"), queue=name, ready=now.ready)


def _hanging(name: str, now: TaskFigures) -> Iterator[Check]:
    """Tasks that seem to hang; without any, tasks that wait while every thread runs one for long."""
    if now.hung:
        first, more = now.hung[0], len(now.hung) - 1
        text = (
            f"{name}: task {first.id} has run for {first.for_s:.0f} s in process {first.process_id} on"
            f" {first.host}, where its like take {first.usual_s or 0.0:.3g} s"
        )
        text += "; its lease is over, and its handler keeps a thread" if first.lost else ""
        text += f"; so has {counted(more, 'other task')}" if more else ""
        ids = [one.id for one in now.hung]
        yield warning(QUEUES, text, cure_of_hung(now.hung), queue=name, hung=ids, full_s=now.full_s)
    elif now.full_s > limits.FULL_WARNING_S and now.ready and not now.paused:
        text = (
            f"{name} has {counted(now.ready, 'ready task')}, and for {now.full_s:.0f} s no thread of its"
            f" {counted(now.workers, 'worker')} has been free"
        )
        yield warning(QUEUES, text, command("explain", name), queue=name, full_s=now.full_s)


def _stored(name: str, now: TaskFigures, failing: Sequence[Any]) -> Iterator[Check]:
    if now.sweep_lag_s > limits.SWEEP_LAG_WARNING_S:
        text = f"{name} was last swept {now.sweep_lag_s:.0f} s too late: due tasks and dead leases wait"
        cure = "Start a worker: every process that takes from the queue sweeps it."
        yield warning(QUEUES, text, cure, queue=name, sweep_lag_s=now.sweep_lag_s)
    if now.buried:
        text = f"{name} has {counted(now.buried, 'buried task')} to decide on"
        yield warning(QUEUES, text, command("dead classes", name), queue=name, buried=now.buried)
    if is_full(now):
        text = f"{name} is full, with {counted(stored_in(now), 'task')}: puts wait or are refused"
        yield warning(QUEUES, text, way_to_room(name, now, *failing), queue=name, capacity=now.capacity)


def _key_waits(name: str, before: TaskFigures, now: TaskFigures) -> Iterator[Check]:
    """The first task of a busy key has waited for long. The longest of these waits is told."""
    taker, starved = _starved(before, now)
    waits = [(one.first_age_s, one) for one in starved or now.busiest if one.first_age_s is not None]
    age_s, longest = max(waits, key=itemgetter(0), default=(0.0, None))
    wanted_s = limits.STARVED_WARNING_S if starved else limits.KEY_WAITS_WARNING_S
    if longest is None or now.paused or age_s <= wanted_s:
        return
    text, key = f"{name} has {counted(longest.ready, 'ready task')} of the key", told(longest.key)
    text, cure = f"{text} {key}, the first one for {age_s:.0f} s", command("stats", name)
    if taker is not None:
        text += f", while the key {told(taker.key)} gets nearly all takes"
        cure = command("explain", name)
    yield warning(QUEUES, text, cure, queue=name, key=key, age_s=age_s)


def _starved(before: TaskFigures, now: TaskFigures) -> tuple[KeyFigures | None, list[KeyFigures]]:
    """The key with nearly all taken tasks at both looks, and those that had none, and no turn in between: the
    takes were enough for two turns of each key.
    """
    known = {key_bytes(one.key): one for one in before.busiest}
    pairs = [(was, one) for one in now.busiest if (was := known.get(key_bytes(one.key))) is not None]
    starved = [
        one for was, one in pairs if one.is_exact and not was.taken + one.taken and one.ready >= was.ready
    ]
    least, last = limits.NEARLY_ALL * max(1, before.taken), limits.NEARLY_ALL * max(1, now.taken)
    taker = next((one for was, one in pairs if was.taken >= least and one.taken >= last), None)
    is_enough = now.calls["take"] - before.calls["take"] >= 2 * len(now.busiest)
    return (taker, starved) if taker is not None and starved and is_enough else (None, [])


def _hot(name: str, before: TaskFigures, now: TaskFigures, seconds: float) -> Iterator[Check]:
    rate = _rate(before, now, seconds)
    if rate > limits.HOT_TASKS_PER_S * now.partitions:
        what = "of one storage team" if now.partitions == 1 else f"of its {now.partitions} partitions"
        text = f"{name} is hot: {rate:.0f} tasks a second, near the limit {what}"
        wanted = min(limits.PARTITIONS_MAX, 2 * ceil(rate / limits.HOT_TASKS_PER_S))
        cure = f"Take and put in batches, or `{command('repartition', name, str(wanted))}` (docs/scaling.md)."
        yield warning(QUEUES, text, cure, queue=name, tasks_per_s=rate, partitions=now.partitions)


def _sparse(name: str, before: TaskFigures, now: TaskFigures, seconds: float) -> Iterator[Check]:
    """A queue with many partitions and few tasks. Nothing to cure: its peaks may need them."""
    rate, ready = _rate(before, now, seconds), max(before.ready, now.ready)
    enough = max(1.0, 2 * rate / limits.HOT_TASKS_PER_S)
    if rate and ready < now.partitions and now.partitions >= limits.SPARSE_PARTITIONS * enough:
        text = (
            f"{name} has {now.partitions} partitions for {rate:.0f} tasks a second, and few ready tasks: with"
            " fewer of them its calls conflict less, unless its peaks need as many (docs/scaling.md)"
        )
        yield fine(QUEUES, text, queue=name, tasks_per_s=rate, partitions=now.partitions)


def _rate(before: TaskFigures, now: TaskFigures, seconds: float) -> float:
    """Tasks a second."""
    return max(now.calls[call] - before.calls[call] for call in ("put", "take")) / seconds


def _repartition(name: str, before: TaskFigures, now: TaskFigures) -> Iterator[Check]:
    """A repartition that waits for tasks of the old partitions while none is taken and none ends."""
    is_open = before.partitions_before and now.partitions_before
    if not is_open or any(now.calls[call] != before.calls[call] for call in ("take", "ack")):
        return
    held_by = counted(now.taken, "taken task") if now.taken else counted(now.ready, "ready task")
    text = (
        f"{name} is under repartition from {now.partitions_before} to {now.partitions}, and its tasks stand"
        f" still: it ends with those of the old partitions, with {held_by} in all"
    )
    yield warning(QUEUES, text, command("partitions", name), queue=name, partitions=now.partitions)


GROUPS = "groups"


def check_groups(found: GroupsFigures) -> list[Check]:
    """One result; none if there is no group that has not ended."""
    if not found.first_held:
        least = "" if found.is_whole else "at least "
        count = f"{least}{counted(found.unfinished, 'unfinished group')}"
        return [fine(GROUPS, count, unfinished=found.unfinished)] if found.unfinished else []
    first = found.first_held[0]
    are = "1 group is" if found.held == 1 else f"{found.held:,} groups are"
    text = f"{are} held by buried members, such as {first.id} by {first.buried:,} of them: it does not end"
    return [warning(GROUPS, text, command("group", "show", first.id), held=found.held, group=first.id)]


LIMITS = "limits"


@dataclass(frozen=True)
class SeenHolders:
    """The first holders of a full limit, or of a full key, and those among them with dead sessions."""

    whose: str
    """The limit, or its key, in words."""
    seen: int
    dead: int
    queue: str
    """That of the first dead one; empty without one."""
    key: str = ""


def see_holders(database: Database, keys: RootKeys, figures: Figures) -> dict[str, list[SeenHolders]]:
    """The holders of the limits that have no free slot, at most limits.LIMIT_HOLDERS_SHOWN of each. Of a
    limit that counts each key apart, those of its keys without a free slot, and those of tasks without a key.
    Reads by snapshot. Round trips: 2 for each of these limits, 3 for one that counts keys apart.
    """
    now, seen = database.runtime.now(), dict[str, list[SeenHolders]]()
    for limit in figures.limits:
        see = _key_holders if limit.per_key else _holders
        if limit.slots is not None and (limit.used if limit.per_key else limit.used >= limit.slots):
            seen[limit.name] = run(database, partial(see, keys=keys, name=limit.name, now=now))
    return seen


def _holders(tr: Transaction, keys: RootKeys, name: str, now: float) -> list[SeenHolders]:
    found = ask_holders(tr.snapshot, LimitKeys(keys.prefix, name))()
    return [_seen(tr, keys, f"the limit {name}", found, now)]


def _key_holders(tr: Transaction, keys: RootKeys, name: str, now: float) -> list[SeenHolders]:
    """The holders of full keys, among the first limits.DIAGNOSED_LIMIT_KEYS_MAX ones that tasks use. Before
    them those of tasks without a key, if these use all slots that are theirs.
    """
    of_limit, most = LimitKeys(keys.prefix, name), limits.DIAGNOSED_LIMIT_KEYS_MAX
    of_no_key, keyless = ask_by_snapshot(tr.snapshot, of_limit), ask_holders(tr.snapshot, of_limit)
    states = key_states(tr.snapshot, of_limit, of_no_key().rule, most)
    full = [state.key for state in states if state.is_apart and state.is_full]
    first = full[: limits.DIAGNOSED_FULL_KEYS_MAX]
    asked = [(key, ask_holders(tr.snapshot, of_limit, key)) for key in first]
    told = f"the limit {name}, of tasks that name it without a key,"
    found = [_seen(tr, keys, told, keyless(), now)] if of_no_key().is_full else []
    named = [(repr(shown_key(key)), reply) for key, reply in asked]
    return found + [
        replace(_seen(tr, keys, f"the key {key} of the limit {name}", reply(), now), key=key)
        for key, reply in named
    ]


def _seen(
    tr: Transaction, keys: RootKeys, whose: str, found: Sequence[LimitHolder], now: float
) -> SeenHolders:
    ids = {holder.session for holder in found} - {HANDED_OFF.hex()}
    sessions = {id_: ask_holder(tr.snapshot, keys, bytes.fromhex(id_)) for id_ in sorted(ids)}
    dies = {session: reply().dies for session, reply in sessions.items()}
    overdue = {session for session in ids if (dies[session] or 0.0) < now - limits.OVERDUE_WARNING_S}
    dead = [holder for holder in found if holder.session in overdue]
    return SeenHolders(whose, len(found), len(dead), dead[0].queue if dead else "")


def check_limits(figures: Figures, holders: Mapping[str, Sequence[SeenHolders]]) -> list[Check]:
    """The results for all limits; one that counts them if all are fine, and none without any."""
    told = [result for one in figures.limits for result in _of_limit(one, holders.get(one.name, ()))]
    count = len(figures.limits)
    return told or ([fine(LIMITS, counted(count, "limit"), limits=count)] if count else [])


def _of_limit(limit: LimitFigures, holders: Sequence[SeenHolders]) -> Iterator[Check]:
    name = limit.name
    if limit.free is None:
        yield _without_rule(limit)
    for found in holders:
        if not found.dead:
            continue
        text = (
            f"{found.whose} has no free slot, and {found.dead} of its first {found.seen} holders are tasks"
            f" of dead sessions, such as one of {found.queue}"
        )
        cure = "Start a worker, or any program that takes: it ends the sessions of dead processes."
        key = {"key": found.key} if found.key else {}
        yield warning(LIMITS, text, cure, limit=name, dead=found.dead, waiting=limit.waiting, **key)


def _without_rule(limit: LimitFigures) -> Check:
    text = f"the limit {limit.name} {'does not exist' if limit.error is None else 'cannot be read'}"
    first, *others = limit.queues or ("",)
    more = f" and {counted(len(others), 'more queue')}" if others else ""
    text += f", so tasks of {first}{more} run without it" if first else ", and no queue names it"
    cure = command("limit", "set", limit.name, "--slots", "N")
    error = {} if limit.error is None else {"error": limit.error}
    return warning(LIMITS, text, cure, limit=limit.name, queues=list(limit.queues), **error)


SCHEDULES = "schedules"


def see_schedules(database: Database, keys: RootKeys) -> list[ScheduleStatus]:
    """The first limits.QUEUES_LISTED_MAX schedules. Reads by snapshot."""

    def listing(after: str | None = None) -> Page[ScheduleStatus]:
        look = partial(page, keys=keys, limit=limits.SCHEDULES_LISTED_MAX, after=after or "")
        return run(database, lambda tr: look(tr.snapshot), timeout_s=limits.LOOK_TIMEOUT_S)

    return list(islice(every_row(listing), limits.QUEUES_LISTED_MAX))


def check_schedules(
    found: Sequence[ScheduleStatus], now: float, queues: Collection[str] | None = None
) -> list[Check]:
    """One result that counts the schedules if all are fine. `queues`: None if they are not known."""
    told = [
        result for one in found for result in _of_schedule(one, now, queues is None or one.queue in queues)
    ]
    count = len(found)
    return told or ([fine(SCHEDULES, counted(count, "schedule"), schedules=count)] if count else [])


def _of_schedule(found: ScheduleStatus, now: float, has_queue: bool) -> Iterator[Check]:
    name = found.name
    if found.queue and not has_queue:
        text = f"the queue {found.queue} of the schedule {name} does not exist"
        cure = f"Create that queue, or {command('schedule', 'delete', name)}"
        yield warning(SCHEDULES, text, cure, schedule=name, queue=found.queue)
    elif found.error is not None:
        text = f"the schedule {name} is not fired: {found.error}"
        cure = command("schedule", "show", name)
        yield warning(SCHEDULES, text, cure, schedule=name, tries=found.tries, error=found.error)
    elif found.next_try is not None and now - found.next_try > limits.SWEEP_LAG_WARNING_S:
        late_s = now - found.next_try
        text = f"the schedule {name} is due since {late_s:.0f} s, and no process passes"
        cure = "Start a worker: each process with one fires schedules. Its log names a package that it lacks."
        yield warning(SCHEDULES, text, cure, schedule=name, late_s=late_s)
    elif found.last_fired is not None and found.last_fired > now + limits.CLOCK_SKEW_S:
        early_s = found.last_fired - now
        text = f"the schedule {name} was fired by a clock that is {early_s:.0f} s ahead of this one"
        cure = f"Correct that clock, then pause and resume it: {command('schedule', 'pause', name)}"
        yield warning(SCHEDULES, text, cure, schedule=name, early_s=early_s)


_NAME_ANOTHER = "Follow the message, or name another database with --url."
Run = Callable[[], list[Check]]


def diagnose(db: AnyDatabase, *, watch_s: float = 3.0, root: Any = DEFAULT_ROOT) -> Diagnosis:
    """Check a database, the processes that use it, and its queues. A check that cannot be made is a failure.

    It looks twice, `watch_s` seconds apart, an hour at most. Clocks are compared of sessions that beat in
    between: a session beats three times in its ttr.
    Reads: by snapshot; figures of all queues, heartbeats, the cluster's status.
    Writes: nothing that stays; a few commits clear keys that do not exist.
    Conflicts: none.
    Raises: InvalidArgument, NotADatabase, DatabaseClosed.
    """
    if not is_number(watch_s) or not 0 <= watch_s <= limits.DOCTOR_WATCH_S_MAX:
        wanted = f"0 to {limits.DOCTOR_WATCH_S_MAX:g} seconds"
        raise InvalidArgument(name="watch_s", wanted=wanted, got=watch_s)
    examination = Examination(as_database(db), root, Overview(root=root))
    return Diagnosis(tuple(examination.checks(watch_s)))


def diagnosis_without(url: str, error: str) -> Diagnosis:
    """The diagnosis of a database that cannot be opened, or does not answer."""
    is_cluster = url.startswith("fdb:")
    cure = "Check the cluster file, and the servers: `fdbcli --exec status`." if is_cluster else _NAME_ANOTHER
    own = checks.see_open_files([RealRuntime().process_id()])
    told = failure("connection", error, cure, url=url)
    return Diagnosis((told, *checks.check_versions(), *checks.check_open_files(own)))


class Examination:
    def __init__(self, database: Database, root: Any, overview: Overview) -> None:
        self._database, self._root, self._keys = database, root, RootKeys(root)
        self._overview = overview
        self._last: Figures | None = None
        """The figures of the second look."""

    def checks(self, watch_s: float) -> Iterator[Check]:
        yield from _told(checks.VERSIONS, checks.check_versions)
        yield from self._of_engine()
        see = partial(checks.see_latency, self._database, self._keys)
        yield from _told(checks.LATENCY, lambda: checks.check_latency(see()))
        yield from _told(QUEUES, lambda: self._watched(watch_s))
        yield from _told(checks.WORKERS, self._of_workers)
        yield from _told(LIMITS, self._of_limits)
        yield from _told(SCHEDULES, self._of_schedules)
        yield from _told(GROUPS, lambda: [] if self._last is None else check_groups(self._last.groups))

    def _of_engine(self) -> Iterator[Check]:
        engine = self._database.engine
        if isinstance(engine, EmbeddedDatabase):
            see = partial(checks.see_directory, engine.lmdb_store)
            yield from _told(checks.DIRECTORY, lambda: checks.check_directory(see()))
        else:
            yield from _told(checks.CLUSTER, self._of_cluster)
            yield from _told(checks.BATCH, lambda: checks.check_batch(checks.see_batch(self._database)))

    def _of_cluster(self) -> list[Check]:
        status = checks.see_status(self._database)
        return [
            *checks.check_cluster(status),
            *checks.check_client_library(status),
            *checks.check_knobs(status),
            *checks.check_clock(status, self._database.runtime.now()),
        ]

    def _watched(self, watch_s: float) -> list[Check]:
        beats, figures = self._look()
        self._database.runtime.sleep(watch_s)
        later, self._last = self._look()
        return [
            *checks.check_clocks(beats, later),
            *checks.check_sessions(later, self._held(later)),
            *checks.check_open_files(checks.see_open_files(self._processes_here(later))),
            *check_queues(figures, self._last, see_failing(self._database, self._root, self._last)),
        ]

    def _held(self, look: Look) -> dict[str, int]:
        silent = [bytes.fromhex(id_) for id_ in checks.without_beats(look)]
        found = held_by(self._database, self._keys, silent) if silent else {}
        return {session.hex(): count for session, count in found.items()}

    def _of_workers(self) -> list[Check]:
        pause = paused(self._database, self._keys)
        return checks.check_workers(members(self._database, self._keys), pause, self._database.runtime.now())

    def _of_limits(self) -> list[Check]:
        if self._last is None:  # the check of queues tells the reason
            return []
        return check_limits(self._last, see_holders(self._database, self._keys, self._last))

    def _of_schedules(self) -> list[Check]:
        found, last = see_schedules(self._database, self._keys), self._last
        are_all = last is not None and len(last.queues) < limits.QUEUES_LISTED_MAX
        there = set(last.by_name) if last is not None and are_all else None
        return check_schedules(found, self._database.runtime.now(), there)

    def _look(self) -> tuple[Look, Figures]:
        beats = checks.look_at_beats(self._database, self._keys)
        return beats, run(self._database, self._overview.figures, timeout_s=limits.LOOK_TIMEOUT_S)

    def _processes_here(self, look: Look) -> list[int]:
        """This process, and those with sessions on this host."""
        runtime = self._database.runtime
        host, own = runtime.host_name(), runtime.process_id()
        here = {id_ for beat in look.beats.values() for place, id_ in beat.process_ids if place == host}
        return sorted({own, *here})


def _told(check: str, run: Run) -> list[Check]:
    try:
        return run()
    except DatabaseClosed:
        raise
    except Exception as error:
        text = f"the check of {check} failed: {type(error).__name__}: {text_of(error)}"
        return [failure(check, text, "Mend the cause that is told, then run it again.")]
