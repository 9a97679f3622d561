"""The rules of limits, judged at each commit: no start above the slots, and slots that agree with holders.

Agreement compares each holder with the record of its task. Here the numbers of the cells follow: at each
version they equal the holders. They grow only up to the slots, and only in a commit that has seen the limit.
"""

from collections import Counter
from collections.abc import Iterator

from fdbqueue.core import root_keys as columns
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.tasks.limits.rule import (
    CELLS_MAX,
    COUNT,
    HOLDER,
    KEY_HOLDER,
    OF_KEY,
    LimitKeys,
    cells_of,
    held_of,
    rule_of,
)
from fdbqueue.tasks.limits.state import number_of
from tests.system.audit.commit import Step
from tests.system.audit.mirror import Mirror


class LimitRules:
    def __init__(self, keys: RootKeys) -> None:
        self._keys = keys
        self._held: Counter[tuple[str, int]] = Counter()
        """Holders by limit and cell."""
        self._of_keys: Counter[tuple[str, bytes]] = Counter()
        """Holders by limit and key."""

    def judge(self, step: Step, mirror: Mirror) -> Iterator[str]:
        touched: dict[str, None] = {}
        keys: dict[tuple[str, bytes], None] = {}
        for key, values in step.changes.items():
            column, rest = self._keys.shape_of(key)
            if column not in (columns.LIMIT, columns.LIMITED):
                continue
            touched[rest[0]] = None
            if column == columns.LIMITED and rest[1] == HOLDER:
                self._count(rest[0], values.before, -1)
                self._count(rest[0], values.after, 1)
            if column == columns.LIMITED and rest[1] in (COUNT, OF_KEY):
                keys[rest[0], rest[2]] = None
                if rest[1] == OF_KEY and rest[3] == KEY_HOLDER:
                    change = (values.after is not None) - (values.before is not None)
                    self._of_keys[rest[0], rest[2]] += change
        for name in touched:
            yield from self._judge_limit(name, step, mirror)
            yield from self._judge_total(name, mirror)
        for name, key in keys:
            yield from self._judge_key(name, key, step, mirror)

    def _count(self, name: str, value: bytes | None, change: int) -> None:
        held = None if value is None else held_of(value)
        if held is not None:
            self._held[name, held.cell] += change

    def _judge_limit(self, name: str, step: Step, mirror: Mirror) -> Iterator[str]:
        keys = LimitKeys(self._keys.prefix, name)
        rule = rule_of(mirror.value(keys.row))
        if rule is None or not rule.is_of_slots:
            return
        numbers = cells_of(mirror.value(keys.cells))
        held = [self._held[name, cell] for cell in range(CELLS_MAX)]
        if numbers != held:
            yield f"the cells of the limit {name!r} are {numbers}, and its holders {held}"
        change = step.changes.get(keys.cells)
        grows = change is not None and sum(numbers) > sum(cells_of(change.before))
        if grows and sum(numbers) > rule.slots:
            yield f"{sum(numbers)} tasks run under the limit {name!r} of {rule.slots} slots"

    def _judge_key(self, name: str, key: bytes, step: Step, mirror: Mirror) -> Iterator[str]:
        keys = LimitKeys(self._keys.prefix, name)
        rule = rule_of(mirror.value(keys.row))
        if rule is None or not rule.is_of_slots or not rule.per_key:
            return
        used, held = number_of(mirror.value(keys.count(key))), self._of_keys[name, key]
        if used != held:
            yield f"{used} slots of the key {key!r} of the limit {name!r} are in use, and tasks hold {held}"
        change = step.changes.get(keys.count(key))
        if change is not None and used > number_of(change.before) and used > rule.slots:
            yield f"{used} tasks of the key {key!r} run under the limit {name!r} of {rule.slots} slots"

    def _judge_total(self, name: str, mirror: Mirror) -> Iterator[str]:
        keys = LimitKeys(self._keys.prefix, name)
        total = number_of(mirror.value(keys.total))
        held = sum(count for (of, _), count in self._of_keys.items() if of == name)
        rule = rule_of(mirror.value(keys.row))
        if rule is not None and rule.is_of_slots and total != held:
            yield f"{total} slots of the limit {name!r} are in use by keys, and tasks hold {held}"
