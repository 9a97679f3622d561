"""The counters of a queue, compared with the keys that they count.

A counter and its keys are compared at one read version, in one transaction of limits.COUNTED_S. If that is
too short, the count goes on in further ones. Then it proves something only if nothing has changed meanwhile:
the values of `quiet`, which every change of the keys changes, are the same in all of them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from fdbqueue.core import limits
from fdbqueue.core.database import Database, run, runtime_of
from fdbqueue.core.rows import Count, Flaw, Suspect, Tally, claim_mending, told_key
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.core.unreadable import Aside
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.queues.elements.store import Elements
from fdbqueue.queues.recipe.items import Recipe, size_of
from fdbqueue.tasks.stored.key_counts import slug_of
from fdbqueue.tasks.stored.keyed import Keyed, rebuild
from fdbqueue.tasks.stored.records import LIVE_NAMES, TaskKeys, packed, unpacked

_KEYS_TOGETHER = 500
"""Task keys that one transaction compares with their counters."""


def counts_of_tasks(checks: TaskChecks, registered: bool) -> Iterator[Count]:
    """The counters of a queue. Those of classes of failure are known after the scan of `checks`."""
    shape, keys = checks.shape, checks.keys
    # A FairQueue counts no calls, so that its counters may return to an old value.
    quiet = (keys.live, keys.calls) if registered else ()
    states = zip(LIVE_NAMES, (shape.discipline.index, keys.taken, keys.buried, keys.delayed), strict=True)
    for state, under in states:
        yield _count_of_state(state, Tally({state: under}, keys.live, keys.has_shape, quiet))
    for error in sorted(checks.classes):
        tally = Tally({error: keys.classed_under(error)}, keys.class_count(error), keys.has_shape, quiet)
        yield Count(f"buried tasks of the class {error!r}", tally, goes_at_zero=True)
    for feature in checks.features:
        yield from feature.counts()
    if not keys.partition:
        yield _count_of_aside(shape.aside)


def _count_of_state(state: str, tally: Tally) -> Count:
    def number_in(value: bytes | None) -> int:
        return _signed(unpacked(LIVE_NAMES, value)[state])

    return Count(
        f"{state} tasks", tally, number_in, lambda difference: packed(LIVE_NAMES, {state: difference})
    )


def counts_of_recipe(recipe: Recipe) -> Iterator[Count]:
    yield Count("items", Tally({"items": recipe.keys.items}, recipe.keys.size, recipe.keys.is_key), size_of)
    yield _count_of_aside(recipe.aside)


def counts_of_elements(elements: Elements) -> Iterator[Count]:
    keys = elements.keys
    yield Count("elements", Tally({"elements": keys.elements}, keys.count, keys.is_sound))
    yield _count_of_aside(elements.aside)


def _count_of_aside(aside: Aside) -> Count:
    return Count("values set aside", Tally({"values": aside.entries}, aside.count_key))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


# Counters by task key.


def key_counters(database: Database, checks: TaskChecks) -> Iterator[Suspect | str]:
    """Compare the counters of doubtful task keys, some at a time, in one transaction each. A sentence if that
    took too long.
    """
    discipline, keys = checks.shape.discipline, doubtful_keys(checks)
    if isinstance(discipline, Keyed):
        counters = _OfKeys(checks.keys, discipline, checks.mending)
        for at in range(0, len(keys), _KEYS_TOGETHER):
            yield from run(database, partial(counters.compare, keys[at : at + _KEYS_TOGETHER]))


def doubtful_keys(checks: TaskChecks) -> Sequence[bytes]:
    """Task keys with other counters than the tasks that the scan found; some have changed meanwhile."""
    counted: dict[bytes, dict[str, int]] = {}
    for (key, state), number in checks.found_by_key.items():
        counted.setdefault(key, {})[state] = number
    stored = {} if checks.beside is None else checks.beside.counters
    positive = {key: {state: n for state, n in numbers.items() if n} for key, numbers in stored.items()}
    return sorted(
        key for key in counted.keys() | positive.keys() if counted.get(key, {}) != positive.get(key, {})
    )


class _OfKeys:
    """The counters of the task keys of one queue, or of one partition."""

    def __init__(self, keys: TaskKeys, keyed: Keyed, mending: str) -> None:
        self._keys = keys
        self._keyed = keyed
        self.mending = mending

    def compare(self, batch: Sequence[bytes], tr: Transaction) -> Sequence[Suspect | str]:
        counted = self._counted(batch, tr)
        if counted is None:
            return ["The counters of task keys: there are too many tasks to count."]
        stored = {key: self._keyed.counts.numbers(tr, slug_of(key)) for key in batch}
        return [
            Suspect(
                Flaw.KEY_COUNTER,
                self._keyed.counts.counts_key(slug_of(key)),
                f"The counter of the {state} tasks of the task key {told_key(key)} says "
                f"{_signed(stored[key][state]):,}, and there are {counted[key, state]:,}.",
                self.mending,
                partial(self._mend, key),
            )
            for key in batch
            for state in LIVE_NAMES
            if stored[key][state] != counted[key, state]
        ]

    def _counted(self, batch: Sequence[bytes], tr: Transaction) -> Counter[tuple[bytes, str]] | None:
        """The tasks of these keys by state; None if that takes longer than limits.COUNTED_S."""
        now, wanted, counted = runtime_of(tr).monotonic, set(batch), Counter[tuple[bytes, str]]()
        until = now() + limits.COUNTED_S
        for key, state in self._tasks(batch, tr.snapshot):
            if now() > until:
                return None
            if key in wanted:
                counted[key, state] += 1
        return counted

    def _tasks(self, batch: Sequence[bytes], tr: ReadTransaction) -> Iterator[tuple[bytes, str]]:
        """The task keys and states of all tasks that are not ready, and of the ready ones of the batch."""
        keys = self._keys
        for state, under in (("taken", keys.taken), ("buried", keys.buried), ("delayed", keys.delayed)):
            yield from ((bytes(row.value), state) for row in tr.get_range(under.start, under.stop))
        for key in batch:
            fifo = self._keyed.fifo(key)
            yield from ((key, "ready") for _ in tr.get_range(fifo.start, fifo.stop))

    def _mend(self, key: bytes, tr: Transaction) -> None:
        counter = self._keyed.counts.counts_key(slug_of(key))
        claim_mending(tr, counter)
        counted = self._counted([key], tr)
        if counted is not None:
            stored = self._keyed.counts.numbers(tr, slug_of(key))
            tr.add(
                counter,
                packed(LIVE_NAMES, {state: counted[key, state] - stored[state] for state in LIVE_NAMES}),
            )
            tr.compare_and_clear(counter, bytes(len(packed(LIVE_NAMES, {}))))
            rebuild(self._keyed, tr, key)  # the state was judged, and perhaps mended, by the wrong counter
