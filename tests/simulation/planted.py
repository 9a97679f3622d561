"""Realistic bugs, each a line or two of the project's own source changed, and how to plant one.

The function's code is exchanged in place, so that each reference to it runs the bug. The old line
must occur exactly once: a refactoring that moves it fails the test instead of planting nothing.
"""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fdbqueue import database
from fdbqueue.calls import combine, once
from fdbqueue.dead import elsewhere, pacing, redrive
from fdbqueue.disciplines import fair, key_counts, keyed, places
from fdbqueue.elements import cursor, store
from fdbqueue.embedded import watches
from fdbqueue.fair import items as fair_items
from fdbqueue.fleet import heartbeat
from fdbqueue.fleet import settling as working
from fdbqueue.line import decision, results, staging, taking, waiting
from fdbqueue.persistent import owners, proxy, work
from fdbqueue.recipe import items as recipe
from fdbqueue.registry import registry
from fdbqueue.sessions import keeper, openers
from fdbqueue.tasks import (
    acks,
    capacity,
    change,
    classes,
    edges,
    ended,
    excusing,
    explaining,
    failures,
    progress,
    ready,
    reasons,
    retaining,
    source,
    verbs,
)
from fdbqueue.verifying import counting


@dataclass(frozen=True)
class Plant:
    """A bug, its place, and the number of seeds of a workload within which it must be found.

    `near` is a seed that found it when it was planted; it is tried first, as the search may take a minute.
    """

    what: str
    function: Callable[..., Any]
    old: str
    new: str
    workload: str
    seeds_max: int
    near: int = 0

    @property
    def where(self) -> str:
        return f"{self.function.__module__.removeprefix('fdbqueue.')}.{self.function.__qualname__}"


@contextmanager
def planted(plant: Plant) -> Iterator[None]:
    """Plant the bug for the duration of the context."""
    function: Any = plant.function
    healthy = function.__code__
    function.__code__ = _sick(plant).__code__
    try:
        yield
    finally:
        function.__code__ = healthy


def _sick(plant: Plant) -> Any:
    source = textwrap.dedent(inspect.getsource(plant.function))
    found = source.count(plant.old)
    assert found == 1, f"{plant.where} contains {plant.old!r} {found} times: adapt the planted bug"
    namespace: dict[str, Any] = {}
    code = compile(source.replace(plant.old, plant.new), f"<{plant.what}>", "exec")
    exec(code, dict(plant.function.__globals__), namespace)
    return namespace[plant.function.__name__]


PLANTS = (
    Plant(
        "no read-conflict keys for the items that a look hands out",
        recipe.Recipe.claim,
        "tr.add_read_conflict_key(self.keys.item(offer.id))",
        "pass",
        "recipe",
        100,
    ),
    Plant(
        "no read-conflict keys for the requests that a look serves",
        staging.Line._protect,
        "tr.add_read_conflict_key(self.keys.request(ticket))",
        "pass",
        "crowd",
        350,
        near=21,
    ),
    Plant(
        "conflict keys added after their own writes",
        staging.Line._take,
        """self._protect(tr, leaving, take.pairs)
    for ticket in leaving:
        self._clear_request(tr, ticket)
""",
        """for ticket in leaving:
        self._clear_request(tr, ticket)
    self._protect(tr, leaving, take.pairs)
""",
        "crowd",
        350,
    ),
    Plant(
        "a take that does not conflict at the head of the queue",
        recipe.Recipe.hand_out,
        "tr.add_read_conflict_range(",
        "max(",
        "recipe",
        50,
    ),
    Plant(
        "a retry after an unknown result that ignores its receipt",
        once._Call.run,
        "if self._unsure else None",
        "if False else None",
        "recipe",
        50,
    ),
    Plant(
        "a receipt's slot chosen inside the retried body",
        once._Call.run,
        "self._tr.set(self._slot, attempt)",
        "self._tr.set(self._receipts.take_slot(), attempt)",
        "recipe",
        50,
    ),
    Plant(
        "closing clears the receipts of calls in flight",
        once.Receipts._clear,
        "for slot in free[: limits.BATCH_ITEMS_MAX]:\n        tr.clear(slot)",
        "tr.clear_range(self._keys.receipt(self._process, 0), self._keys.receipt(self._process, 10**6))",
        "closing",
        400,
    ),
    Plant(
        "a counter changed outside the transaction",
        recipe.Recipe._add_size,
        "tr.add(",
        "tr.db.add(",
        "recipe",
        50,
    ),
    Plant(
        "the first request does not watch the doorbell",
        staging.Line._lead,
        ", tr.watch(self.source.doorbell)]",
        "]",
        "waits",
        150,
    ),
    Plant(
        "a request that does not watch the request ahead of it",
        staging.Line._stay,
        ", tr.watch(before)]",
        "]",
        "waits",
        700,
    ),
    Plant(
        "watches that are never cancelled",
        waiting.Place._wait,
        "watch.cancel()",
        "pass",
        "waits",
        50,
    ),
    Plant(
        "an answer of nothing, though items lie there for other requests",
        decision.decide,
        " and not seen.offers",
        "",
        "crowd",
        350,
    ),
    Plant(
        "a call that registers again after an unknown result",
        waiting.Place._register,
        "run(self._database, lambda tr: self._line.find(tr, rid)).stamp",
        "b''",
        "crowd",
        350,
    ),
    Plant(
        "closing does not end the waits",
        database.Database.close,
        "self._waiters.close(limits.CLOSE_TIMEOUT_S)",
        "pass",
        "stops",
        300,
    ),
    Plant(
        "a stopped leader leaves its request in the line",
        waiting.Place._stand,
        "self._abandon(lambda _: self._ticket)",
        "pass",
        "stops",
        100,
    ),
    Plant(
        "a stopped leader sleeps on",
        combine.Combiner._stop,
        "self._wake()",
        "pass",
        "stops",
        100,
    ),
    Plant(
        "collected results that are never cleared",
        results.Results._clear,
        "tr.clear(self._keys.notice(rid))",
        "pass",
        "waits",
        50,
    ),
    Plant(
        "the pieces of a large payload are never cleared",
        recipe.Recipe._clear_pieces,
        "tr.clear_range(under.start, under.stop)",
        "pass",
        "batches",
        50,
    ),
    Plant(
        "a returned item goes to the tail",
        recipe.Recipe.give_back,
        "tr.set(self.keys.item(delivery.id), delivery.value)",
        "tr.set(self.keys.item(suffix(1 << 40, delivery.id)), delivery.value)",
        "crowd",
        100,
    ),
    Plant(
        "a dead request is dropped together with its item",
        results.Results.return_overdue,
        "self._source.give_back(tr, self._delivered(tr, entry.rid, notice))",
        "pass",
        "waits",
        350,
    ),
    Plant(
        "a deadline compared the wrong way",
        results.Results.overdue,
        "entry.deadline_us < now_us",
        "entry.deadline_us > now_us",
        "waits",
        300,
        near=102,
    ),
    Plant(
        "a clear that forgets results that are not collected yet",
        recipe.Recipe.clear,
        "self.line.results.clear_all(tr)",
        "pass",
        "clearing",
        400,
    ),
    Plant(
        "an enqueue into a queue that was dropped a moment before",
        recipe.Recipe.append,
        "    check()\n",
        "",
        "named",
        50,
    ),
    Plant(
        "two queues created at once with one id",
        registry.Registry._create,
        "tr.get(self.keys.last_id)",
        "tr.snapshot.get(self.keys.last_id)",
        "named",
        50,
    ),
    Plant(
        "a leader that forgets its followers",
        combine.Combiner._pass_on,
        "first.signal()",
        "pass",
        "recipe",
        50,
    ),
    Plant(
        "a caller that is made leader as it leaves abandons the request",
        combine.Combiner.call,
        "if mine.leads:\n            self._lead(mine)",
        "if mine.leads:\n            self._pass_on(mine) if self._is_over(mine) else self._lead(mine)",
        "crowd",
        600,
        near=63,
    ),
    Plant(
        "an answer of nothing because another caller took the last item",
        taking._answer,
        "if taken.is_open:",
        "if False:",
        "recipe",
        150,
    ),
    Plant(
        "a caller that came after the look is given its answer",
        taking.Takes._attempt,
        "keep=partial(_answer, crew, to_all=to_all)",
        "keep=lambda taken: (crew.claim(1000, 10**6), _answer(crew, taken, to_all))",
        "recipe",
        200,
    ),
    Plant(
        "a watch of a transaction that is never committed",
        once._Call.run,
        "            self._commit(answer)",
        "            if self._wrote(answer): self._commit(answer)",
        "waits",
        150,
    ),
    Plant(
        "dead requests that are never removed",
        decision._take,
        "seen.is_first or _tidies_first(look)",
        "False",
        "waits",
        150,
    ),
    Plant(
        "a take reads the whole queue",
        recipe.Recipe.available,
        "limit=limit + len(passed)",
        "limit=0",
        "crowd",
        50,
    ),
    Plant(
        "held items that do not conflict with other takes",
        recipe.Recipe.hold_back,
        "self.claim(tr, offers)",
        "pass",
        "holding",
        100,
    ),
    Plant(
        "a holder that does not return the items that it did not show",
        results.Results.collect,
        "self._source.give_back(tr, deliveries[wanted:])",
        "pass",
        "holding",
        50,
    ),
    Plant(
        "a watch armed without reading its key again",
        watches.Watches.arm,
        "self._look([key])",
        "pass",
        "bank",
        50,
    ),
    Plant(
        "no read-conflict key for the tasks that are taken",
        ready.Ready.rely_on,
        "tr.add_read_conflict_key(self._task(record.id))",
        "pass",
        "tasks",
        200,
        near=11,
    ),
    Plant(
        "a task read by snapshot before it is changed",
        change.Change.read,
        "self.tr.get(",
        "self.tr.snapshot.get(",
        "tasks",
        200,
    ),
    Plant(
        "a verb that does not compare the lease's token",
        verbs.Target.holds,
        "record.token == self.token",
        "True",
        "tasks",
        400,
    ),
    Plant(
        "two acks of one batch that both end one task",
        verbs._take_out,
        "left[target.id] = None",
        "pass",
        "acks",
        50,
        near=4,
    ),
    Plant(
        "a batch of acks that leaves no receipt",
        acks.Acks._ack_all,
        "any(isinstance(one, Task) for one in ended)",
        "False",
        "acks",
        50,
    ),
    Plant(
        "of several tasks of a key that end together one is counted",
        keyed.Keyed._by_key,
        "of(record).freed += 1",
        "of(record).freed = 1",
        "acks",
        50,
    ),
    Plant(
        "a take that is delivered and not counted",
        change.Change._depart,
        "self._live[statistics.LIVE_OF[record.state]] -= 1",
        "pass",
        "tasks",
        50,
    ),
    Plant(
        "an overdue result that gives back a later lease",
        source._is_held,
        "and params_of(lease) == _params_of(delivery)",
        "",
        "tasks",
        600,
        near=88,
    ),
    Plant(
        "two puts in one seat",
        capacity._sit,
        "tr.add_read_conflict_key(seat)",
        "pass",
        "bounded",
        900,
        near=294,
    ),
    Plant(
        "a put that does not look at the gate",
        capacity._sit,
        "tr.add_read_conflict_key(keys.gate)",
        "pass",
        "bounded",
        900,
        near=54,
    ),
    Plant(
        "a put at the edge that does not look at the seats",
        capacity._pass_the_gate,
        "tr.add_read_conflict_range(keys.seats.start, keys.seats.stop)",
        "pass",
        "bounded",
        900,
        near=58,
    ),
    Plant(
        "a put that does not conflict with a move of its key's pointer",
        keyed.Keyed._append,
        "tr.add_read_conflict_key(self.filed(record))",
        "pass",
        "keyed",
        200,
        near=20,
    ),
    Plant(
        "a key that begins in a round far from now",
        fair.Fair.begin,
        "now + 1",
        "now + 9",
        "fairness",
        50,
    ),
    Plant(
        "a take that does not store the current round",
        fair.Fair.tell,
        'tr.max(self.round_key, state.round.to_bytes(_ROUND_BYTES, "little"))',
        "pass",
        "rounds",
        50,
    ),
    Plant(
        "an uncollected item that is not returned",
        fair_items.FairItems.give_back,
        "self._restore(tr, self._sound(tr, deliveries))",
        "self._sound(tr, deliveries)",
        "rounds",
        300,
    ),
    Plant(
        "a counter of a task key that never falls",
        key_counts.KeyCounts.add,
        "packed(LIVE, changes)",
        "packed(LIVE, {name: abs(change) for name, change in changes.items()})",
        "rounds",
        50,
    ),
    Plant(
        "a take that leaves its key in the round that it used",
        fair.Fair.after,
        "state = replace(state, round=round_, used=used)",
        "state = replace(state, used=0)",
        "fairness",
        50,
    ),
    Plant(
        "an ack after the item went to another proxy",
        work._holds,
        "Target(record.id, task.token).holds(record, change.now_us)",
        "True",
        "proxies",
        400,
        near=29,
    ),
    Plant(
        "a put that does not wait for the end of its transaction",
        proxy.Proxy._put,
        "unit.put(draft, until, stop)",
        "self._stored.put(draft, until, stop)",
        "proxies",
        50,
    ),
    Plant(
        "a proxy that registers under a name that it has lost",
        owners.Owner._enrol,
        "self._require_mine(tr)",
        "pass",
        "proxies",
        100,
    ),
    Plant(
        "an element's lock read by snapshot",
        store.Elements.refusal,
        "self.guard(tr), tr.get(self.keys.lock(name))",
        "self.guard(tr), tr.snapshot.get(self.keys.lock(name))",
        "elements",
        200,
    ),
    Plant(
        "a purge that breaks a newer lock than the one it saw",
        store.Elements.break_lock,
        "held.present() and Lock.from_bytes(held.value).since_us < before_us",
        "held.present()",
        "elements",
        200,
    ),
    Plant(
        "a purge that breaks a lock while it is renewed",
        store.Elements.break_lock,
        "tr.get(self.keys.lock(name))",
        "tr.snapshot.get(self.keys.lock(name))",
        "elements",
        200,
        near=138,
    ),
    Plant(
        "a touch that renews nothing",
        store.Elements.touch,
        "Lock(now_us, Lock.from_bytes(held.value).token)",
        "Lock.from_bytes(held.value)",
        "elements",
        50,
    ),
    Plant(
        "a lock's token that is never compared",
        store.Elements._require_lock,
        "Lock.from_bytes(held.value).token != token",
        "False",
        "elements",
        300,
        near=214,
    ),
    Plant(
        "a new name that is read by snapshot",
        store.Elements.add,
        "tr.get(self.keys.element(name)).present()",
        "tr.snapshot.get(self.keys.element(name)).present()",
        "elements",
        50,
    ),
    Plant(
        "a pass that ends with its first full batch",
        cursor.Cursor._read_ahead,
        "len(found) < self._batch",
        "len(found) <= self._batch",
        "elements",
        50,
    ),
    Plant(
        "a lost lease, and its effect is committed all the same",
        working.Settling._ack_and,
        "hold.queue.ack(tr, hold.lease)",
        "hold.lost or hold.queue.ack(tr, hold.lease)",
        "fleet",
        100,
    ),
    Plant(
        "a heartbeat that dies of one failed beat",
        heartbeat.Heartbeat._tick,
        "except Exception as error",
        "except ZeroDivisionError as error",
        "fleet",
        100,
    ),
    Plant(
        "a burial that the row of the run does not count",
        edges.bury,
        'change.end(records, "buried")',
        "pass",
        "fleet",
        50,
    ),
    Plant(
        "failures that outlive their task",
        change.Change.discard,
        "clear_failures(self.tr, keys, records)",
        "pass",
        "fleet",
        50,
    ),
    Plant(
        "a failure written over another one",
        failures.note,
        "_key_of(keys, record.id, entry.number)",
        "_key_of(keys, record.id, record.attempts + 1)",
        "fleet",
        200,
    ),
    Plant(
        "an outage that counts as a failure of the task",
        heartbeat.Heartbeat.lose,
        "self.owe(hold)",
        "pass",
        "outages",
        50,
    ),
    Plant(
        "a task that stays buried though its attempt was excused",
        excusing.excused,
        "edges.freed(right)",
        "right",
        "outages",
        200,
    ),
    Plant(
        "a lease that ended before its worker knew of it, counted",
        source.TaskSource._held,
        "forgive_missed(change, delivery.id, _attempt_of(delivery))",
        "pass",
        "outages",
        200,
    ),
    Plant(
        "a session that ends by an outage that only its keeper met",
        keeper.Keeper.ask,
        "self.silence.ask(self, ",
        "(lambda question: question())(",
        "outages",
        200,
        near=49,
    ),
    Plant(
        "an opener that ends the session of the other openers",
        openers.leave,
        "latest_us <= now_us",
        "True",
        "sharing",
        50,
    ),
    Plant(
        "an answer of nothing while dead sessions hold tasks",
        keeper.Keeper.ended_overdue,
        "return there or self._end(overdue)",
        "return there",
        "sharing",
        50,
    ),
    Plant(
        "an explanation that does not tell of a pause",
        reasons.reasons_of,
        "if found.paused else ()",
        "if False else ()",
        "explained",
        50,
    ),
    Plant(
        "a kick that does not name the buried task",
        reasons._buried,
        "found.task.id",
        "found.task.id[::-1]",
        "explained",
        50,
    ),
    Plant(
        "a place that does not count the tasks before it",
        explaining._before,
        "slice(keys.ready.start, discipline.filed(was))",
        "slice(keys.ready.start, keys.ready.start)",
        "explained",
        50,
    ),
    Plant(
        "a place that does not count the tasks of its key",
        places.ask_place,
        "len(ahead)",
        "0",
        "explained",
        50,
    ),
    Plant(
        "a place that counts no keys with an earlier turn",
        places.ask_place,
        "len(earlier.to_list())",
        "0",
        "explained",
        50,
    ),
    Plant(
        "a wait for a holder that has ended",
        reasons._taken,
        "if _has_ended(holder, found.now):",
        "if holder is None:",
        "explained",
        250,
        near=82,
    ),
    Plant(
        "a release that gives a cancelled task back",
        edges.release,
        "gone, records = _without_cancelled(change, records)",
        "gone = []",
        "cancels",
        50,
    ),
    Plant(
        "a lease that ends, and its cancelled task comes back",
        edges.lease_over,
        "_, records = _without_cancelled(change, records)",
        "pass",
        "cancels",
        100,
    ),
    Plant(
        "a renewal that forgets a cancel",
        edges.renew,
        "until_us=_lease_end(change, record))",
        "until_us=_lease_end(change, record), cancelled_us=0)",
        "cancels",
        100,
    ),
    Plant(
        "a heartbeat that does not tell of a cancel",
        heartbeat.Heartbeat._renew,
        "hold.cancelled = hold.task.id in held.cancelled",
        "pass",
        "cancels",
        100,
    ),
    Plant(
        "a progress that outlives its lease",
        edges.freed,
        "fraction=None,",
        "",
        "follows",
        50,
    ),
    Plant(
        "a progress told by a holder that has lost its lease",
        progress.tell,
        "held(change, target)",
        "change.read([target.id])[0] or held(change, target)",
        "follows",
        200,
    ),
    Plant(
        "a wait that returns the progress that was seen",
        progress._look,
        "record.fraction == seen",
        "record.fraction is None",
        "follows",
        50,
    ),
    Plant(
        "a sweep of ended tasks that does not conflict with another",
        retaining.forget,
        "tr.add_read_conflict_key(row.key)",
        "pass",
        "retained",
        200,
    ),
    Plant(
        "a sweep that leaves an ended task in the index of its key",
        retaining.forget,
        "if row.value:",
        "if False:",
        "retained",
        50,
    ),
    Plant(
        "a sweep that does not look at the number of ended tasks",
        retaining.ask_surplus_due,
        "count_in(counted.value) > limits.RETAINED_MAX",
        "False",
        "retained",
        50,
    ),
    Plant(
        "pages of ended tasks that begin with the oldest",
        ended.page,
        "limit=limit, reverse=True",
        "limit=limit",
        "retained",
        50,
    ),
    Plant(
        "a task that moves on, and its timer stays",
        change.Change._depart,
        "tr.clear(keys.timer(record.timer_us, record.id))",
        "pass",
        "verified",
        50,
    ),
    Plant(
        "a verification that trusts a count while tasks move",
        counting.count,
        "if found.values != first.values:",
        "if False:",
        "verified",
        50,
    ),
    Plant(
        "a redrive that does not move its cursor",
        pacing.stepped,
        "cursor=places[-1] if places else redrive.cursor",
        "cursor=redrive.cursor",
        "redriven",
        200,
        near=26,
    ),
    Plant(
        "a paused redrive that goes on",
        redrive.step,
        "if found.state != RedriveState.RUNNING:",
        "if not found.is_open:",
        "redriven",
        50,
    ),
    Plant(
        "a rate that each process has for itself",
        pacing.turn_of,
        "if 0 < wait_s <=",
        "if False and 0 < wait_s <=",
        "redriven",
        50,
    ),
    Plant(
        "a task that moves into another queue, and stays",
        elsewhere.Elsewhere.move,
        "edges.delete(change, [record for record, _, _ in whole])",
        "pass",
        "redriven",
        50,
    ),
    Plant(
        "a task that is lost on its way into another queue",
        elsewhere.Elsewhere.move,
        "tasks = self._calls.put_within(tr, drafts)\n"
        "        for task, (_, _, entries) in zip(tasks, whole, strict=True):",
        "for task, (_, _, entries) in ():",
        "redriven",
        50,
    ),
    Plant(
        "a class that counts tasks that have left it",
        classes._clear,
        "tr.add(keys.class_count(error), _LESS)",
        "pass",
        "redriven",
        50,
    ),
    Plant(
        "an edit that leaves a part of the old payload",
        change.Change.rewrite,
        "clear_payload(self.tr, self.shape.keys, old)",
        "pass",
        "redriven",
        100,
    ),
)
