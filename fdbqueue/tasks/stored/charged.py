"""Charged: a fair discipline in which a task key pays for the time that its tasks run.

A round gives each key its weight in units of limits.CHARGE_UNIT_S. A take prepays one unit; the time that its
task runs beyond that is a debt of the key. The next take of the key pays it: its turn moves by as many
rounds. Under `beside`, with the slug of a task key:

    8, slug    debt    (running, time)    takes of the key, by snapshot

One little-endian number, so that one atomic add changes both parts: the number of running tasks; and the sum
of ends minus begins and payments, in microseconds. The key owes `running * now + time`, so tasks that still
run cost, too. Clocks of processes differ: a lease costs at most its own time, a take pays at most
limits.PAID_MAX_S, and later takes make up for wrong payments, which are counted.

A key without a ready task keeps its round and debt, and goes on from there when it comes back. A sweep clears
both when the current round has come that far, or when no task of the partition is ready or taken.
"""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.seam import ReadTransaction, Transaction
from fdbqueue.tasks.stored.key_counts import IDLE, KeyState, readable_state, slug_of
from fdbqueue.tasks.stored.keyed import DEBT, Asked, Fair
from fdbqueue.tasks.stored.records import Record

DEBT_BYTES, _TIME_BITS = 16, 96
UNIT_US = round(limits.CHARGE_UNIT_S * 1_000_000)


def debt_to_bytes(running: int, time_us: int) -> bytes:
    return ((running << _TIME_BITS) + time_us).to_bytes(DEBT_BYTES, "little", signed=True)


def debt_of(value: bytes | None) -> tuple[int, int]:
    """The number of running tasks, and the time; both may be negative."""
    total = int.from_bytes(value or b"", "little", signed=True)
    running = (total + (1 << _TIME_BITS - 1)) >> _TIME_BITS
    return running, total - (running << _TIME_BITS)


def units_of(value: bytes | None, now_us: int) -> int:
    """The whole units of a debt that a take pays."""
    running, time_us = debt_of(value)
    owed_us = max(0, running) * now_us + time_us
    return min(max(0, owed_us), round(limits.PAID_MAX_S * 1_000_000)) // UNIT_US


def end_us(record: Record, now_us: int) -> int:
    """The time until which a task costs: within its lease, and not before the end of what is prepaid."""
    last_us = min(record.until_us, record.taken_us + round(limits.CHARGED_MAX_S * 1_000_000))
    return max(record.taken_us + UNIT_US, min(now_us, last_us))


class Charged(Fair):
    keeps_rounds = True

    def debt_key(self, key: bytes) -> bytes:
        return self._beside + bytes((DEBT,)) + slug_of(key)

    def begin(self, state: KeyState, now: int) -> KeyState:
        return state if state.round > now else Fair.begin(self, state, now)

    def tell(self, tr: Transaction, state: KeyState, asked: Asked, took: Sequence[Record]) -> KeyState:
        Fair.tell(self, tr, state, asked, took)
        key, debt = took[0].key, None if asked.debt is None else asked.debt.value
        units, weight = units_of(debt, took[0].taken_us), self._weights.get(key, 1)
        begins_us = sum(record.taken_us + UNIT_US for record in took)
        tr.add(self.debt_key(key), debt_to_bytes(len(took), -begins_us - units * UNIT_US))
        rounds = max(0, state.used + units - 1) // weight
        return replace(state, round=state.round + rounds, used=state.used + units - rounds * weight)

    def ask_ahead_s(self, tr: ReadTransaction, key: bytes) -> Callable[[], float]:
        """Ask for the time that the key has paid for beyond that of the next key."""
        ready, stored = self._keys.ready, tr.get(self.state_key(key))
        first = tr.get_range(ready.start, ready.stop, limit=1)
        round_s: float = self._weights.get(key, 1) * limits.CHARGE_UNIT_S

        def reply() -> float:
            state, nexts = (
                readable_state(stored.value) or IDLE,
                [row.key[len(ready.start) :] for row in first],
            )
            return (state.round - min(map(self.round_in, nexts), default=state.round)) * round_s

        return reply

    def _ask(self, tr: Transaction, reads: ReadTransaction, key: bytes, *, counts: bool) -> Asked:
        asked = super()._ask(tr, reads, key, counts=counts)
        if reads is not tr:  # it takes no task of the key
            return asked
        return Asked(asked.state, asked.standing, tr.snapshot.get(self.debt_key(key)))
