"""The counters of a queue, compared with its keys."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from fdbqueue.core import limits
from fdbqueue.core.aside import COUNTER, Aside, count_in
from fdbqueue.core.database import Database, run
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import Transaction
from fdbqueue.operate.verify.counting import Counted, Tally, claim_mending, count, count_within
from fdbqueue.operate.verify.cures import told_key
from fdbqueue.operate.verify.members import members_in
from fdbqueue.operate.verify.slices import Suspect
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.values import Flaw
from fdbqueue.queues.elements.store import Elements
from fdbqueue.queues.recipe.items import Recipe, size_of
from fdbqueue.tasks.disciplines.beside import rebuild
from fdbqueue.tasks.disciplines.key_counts import Numbers, slug_of
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.groups import members_added
from fdbqueue.tasks.records.keys import TaskKeys
from fdbqueue.tasks.records.statistics import LIVE, packed, unpacked

_KEYS_TOGETHER = 500
"""Task keys that one transaction compares with their counters."""


@dataclass(frozen=True)
class Count:
    """A counter: its tally of one range, the decoder of its value, and the operand that adds a difference."""

    told: str
    tally: Tally
    value_of: Callable[[bytes | None], int]
    operand: Callable[[int], bytes]
    goes_at_zero: bool = False

    def compare(self, found: Counted, mending: str) -> Suspect | None:
        counted, stored = self._both(found)
        if counted == stored:
            return None
        text = f"The counter of {self.told} says {stored:,}, and there are {counted:,}."
        return Suspect(Flaw.COUNTER, self.tally.counter, text, mending, self._mend)

    def _mend(self, tr: Transaction) -> None:
        """Add the difference, which no other change of the queue changes. No conflict with these changes."""
        claim_mending(tr, self.tally.counter)
        found = count_within(self.tally, None, tr)
        if found.place is None:
            counted, stored = self._both(found)
            tr.add(self.tally.counter, self.operand(counted - stored))
            if self.goes_at_zero:
                tr.compare_and_clear(self.tally.counter, self.operand(0))

    def _both(self, found: Counted) -> tuple[int, int]:
        return sum(found.numbers.values()), self.value_of(found.values[self.tally.counter])


def counts_of_tasks(checks: TaskChecks, registered: bool) -> Iterator[Count]:
    """The counters of a queue. Those of classes of failure are known after the scan of `checks`."""
    shape, keys = checks.shape, checks.keys
    # A FairQueue counts no calls, so that its counters may return to an old value.
    quiet = (keys.live, keys.calls) if registered else ()
    states = zip(LIVE, (shape.discipline.index, keys.taken, keys.buried, keys.delayed), strict=True)
    for state, under in states:
        tally = Tally({state: under}, keys.live, keys.has_shape, quiet)
        yield Count(f"{state} tasks", tally, partial(_live_of, state), partial(_live_operand, state))
    for error in sorted(checks.classes):
        tally = Tally({error: keys.classed_under(error)}, keys.class_count(error), keys.has_shape, quiet)
        yield Count(f"buried tasks of the class {error!r}", tally, count_in, COUNTER.pack, goes_at_zero=True)
    ended = Tally({"ended": keys.all_ended}, keys.ended_count, keys.has_shape)
    yield Count("ended tasks", ended, count_in, COUNTER.pack)
    if not keys.partition:
        yield count_of_aside(shape.aside)


def counts_of_members(checks: TaskChecks) -> Iterator[Count]:
    """The counts of members of groups, known after the scan of `checks` and of the partitions."""
    shared, found = checks.shape.shared, checks.members
    for group in sorted(found.groups):
        counter = shared.members_of(found.epoch, group)
        tally = Tally({"members": shared.members_in(group)}, counter, checks.keys.has_shape)
        told = f"members of the group {group.hex()}"
        yield Count(told, tally, members_in, _members_operand, goes_at_zero=True)


def _members_operand(difference: int) -> bytes:
    return members_added({"members": difference})


def counts_of_recipe(recipe: Recipe) -> Iterator[Count]:
    tally = Tally({"items": recipe.keys.items}, recipe.keys.size, recipe.keys.is_key)
    yield Count("items", tally, size_of, COUNTER.pack)
    yield count_of_aside(recipe.aside)


def counts_of_elements(elements: Elements) -> Iterator[Count]:
    tally = Tally({"elements": elements.keys.elements}, elements.keys.count, elements.keys.is_sound)
    yield Count("elements", tally, count_in, COUNTER.pack)
    yield count_of_aside(elements.aside)


def count_of_aside(aside: Aside) -> Count:
    return Count(
        "values set aside", Tally({"values": aside.entries}, aside.count_key), count_in, COUNTER.pack
    )


def _live_of(state: str, value: bytes | None) -> int:
    return _signed(unpacked(LIVE, value)[state])


def _live_operand(state: str, difference: int) -> bytes:
    return packed(LIVE, {state: difference})


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def compared(database: Database, each: Count, mending: str) -> Suspect | str | None:
    """A contradiction; a sentence if the queue changed too fast to tell; None if the counter is right."""
    found = count(database, each.tally)
    if found is None:
        return f"The counter of {each.told}: there are too many to count while they change."
    return each.compare(found, mending)


# Counters by task key.


def doubtful_keys(checks: TaskChecks) -> Sequence[bytes]:
    """Task keys with other counters than the tasks that the scan found; some have changed meanwhile."""
    beside = checks.beside
    if beside is None:
        return ()
    counted: dict[bytes, Counter[str]] = {}
    for (key, state), number in checks.found.items():
        counted.setdefault(key, Counter())[state] += number
    keys = counted.keys() | beside.counters.keys()
    return sorted(
        key for key in keys if dict(+counted.get(key, Counter())) != _positive(beside.counters.get(key, {}))
    )


def key_counters(
    database: Database, checks: TaskChecks, mending: str
) -> Iterator[tuple[Sequence[Suspect], bool]]:
    """Compare the counters of doubtful task keys, some at a time, in one transaction each. The flag is false
    if that took too long.
    """
    keys, discipline = iter(doubtful_keys(checks)), checks.shape.discipline
    while batch := list(islice(keys, _KEYS_TOGETHER)):
        if isinstance(discipline, Keyed):
            look = partial(_compare_keys, checks.keys, discipline, batch, mending, database.runtime)
            yield run(database, look)


def _compare_keys(
    keys: TaskKeys, keyed: Keyed, batch: Sequence[bytes], mending: str, runtime: Runtime, tr: Transaction
) -> tuple[Sequence[Suspect], bool]:
    counted = _counted_by_key(keys, keyed, batch, runtime, tr)
    if counted is None:
        return (), False
    stored = {key: keyed.counts.numbers(tr, slug_of(key)) for key in batch}
    suspects = [
        Suspect(
            Flaw.KEY_COUNTER,
            keyed.counts.counts_key(slug_of(key)),
            f"The counter of the {state} tasks of the task key {told_key(key)} says "
            f"{_signed(stored[key][state]):,}, and there are {counted[key, state]:,}.",
            mending,
            partial(_mend_key, keys, keyed, key, runtime),
        )
        for key in batch
        for state in LIVE
        if stored[key][state] != counted[key, state]
    ]
    return suspects, True


def _counted_by_key(
    keys: TaskKeys, keyed: Keyed, batch: Sequence[bytes], runtime: Runtime, tr: Transaction
) -> Counter[tuple[bytes, str]] | None:
    """The tasks of these keys by state; None if that takes longer than limits.COUNTED_S."""
    until, counted = runtime.monotonic() + limits.COUNTED_S, Counter[tuple[bytes, str]]()
    wanted = set(batch)
    for state, under in (("taken", keys.taken), ("buried", keys.buried), ("delayed", keys.delayed)):
        for row in tr.snapshot.get_range(under.start, under.stop):
            if runtime.monotonic() > until:
                return None
            if row.value in wanted:
                counted[bytes(row.value), state] += 1
    for key in batch:
        fifo = keyed.fifo(key)
        for _ in tr.snapshot.get_range(fifo.start, fifo.stop):
            if runtime.monotonic() > until:
                return None
            counted[key, "ready"] += 1
    return counted


def _mend_key(keys: TaskKeys, keyed: Keyed, key: bytes, runtime: Runtime, tr: Transaction) -> None:
    counter = keyed.counts.counts_key(slug_of(key))
    claim_mending(tr, counter)
    counted = _counted_by_key(keys, keyed, [key], runtime, tr)
    if counted is not None:
        stored: Numbers = keyed.counts.numbers(tr, slug_of(key))
        tr.add(counter, packed(LIVE, {state: counted[key, state] - stored[state] for state in LIVE}))
        tr.compare_and_clear(counter, bytes(len(packed(LIVE, {}))))
        rebuild(keyed, tr, key)  # the state was judged, and perhaps mended, by the wrong counter


def _positive(numbers: Mapping[str, int]) -> dict[str, int]:
    return {state: number for state, number in numbers.items() if number}
