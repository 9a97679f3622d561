"""A look at a task key that waits in its new partition: for how many tasks, and where."""

from collections.abc import Callable

from fdbqueue.core.explanation import HeldKey
from fdbqueue.core.partitions.plan import home_of
from fdbqueue.core.task import TaskState
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.disciplines.key_counts import slug_of
from fdbqueue.tasks.disciplines.key_state import readable_state
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import Record
from fdbqueue.tasks.records.statistics import LIVE, unpacked


def ask_held(change: Change, record: Record) -> Callable[[], HeldKey | None]:
    """Ask, by snapshot, whether the key of a ready task is held. Reads two keys during a repartition."""
    plan, discipline = change.plan, change.shape.discipline
    is_ready = record.state == TaskState.READY
    if plan is None or not plan.before or not is_ready or not isinstance(discipline, Keyed):
        return lambda: None
    old, snapshot = home_of(record.key, plan.before), change.tr.snapshot
    before = change.shape.partition(old).discipline
    assert isinstance(before, Keyed)
    stored = snapshot.get(discipline.state_key(record.key))
    counted = snapshot.get(before.counts.counts_key(slug_of(record.key)))

    def held() -> HeldKey | None:
        state = readable_state(stored.value if stored.present() else None)
        if state is None or not state.held:
            return None
        numbers = unpacked(LIVE, counted.value)
        return HeldKey(old, numbers["ready"] + numbers["taken"], plan.before, plan.count)

    return held
