"""Fair: each task key with ready tasks gets its quota of every round.

The pointer of a key lies at (round of its first task, arrival of that task). So takers find the rounds in
order, and the keys of one round in the order of arrival. The quota of a key is its weight, 1 by default. A
task of cost c needs c units of quota, over several rounds if necessary, and comes in the round of the last
unit. The current round is that of the last task taken. A key that gets its first task begins in the round
after it. The current round is read by snapshot and written by an atomic maximum, so it causes no conflicts.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.disciplines.key_counts import ROUND_MAX, KeyState
from fdbqueue.tasks.disciplines.keyed import Keyed, Now
from fdbqueue.tasks.records.keys import Record, TaskKeys

_ROUND, _ROUND_BYTES = b"\x03", 8


class Fair(Keyed):
    """Any number of tasks of a key may be taken at a time."""

    counts_taken = False

    def __init__(self, keys: TaskKeys, options: Mapping[str, Any]) -> None:
        super().__init__(keys, options)
        self._weights = {bytes.fromhex(key): weight for key, weight in (options["weights"] or {}).items()}
        self.round_key = keys.beside + _ROUND

    def place(self, record: Record) -> bytes:
        return self._keys.order_of(record.id)

    def open(self, state: KeyState) -> bool:  # noqa: ARG002
        return True

    def point(self, state: KeyState, head: Record) -> bytes:
        round_, _ = self._turn(state, head)
        return _sorted(round_) + self._keys.order_of(head.id)

    def after(self, state: KeyState, took: Sequence[Record], freed: int, now: int) -> KeyState:  # noqa: ARG002
        for record in took:
            round_, used = self._turn(state, record)
            state = replace(state, round=round_, used=used)
            if round_ < now:
                # Its first put met the last take of that round. Without a new begin, the key would make up
                # for the missed rounds at the expense of the others.
                state = self.begin(state, now)
        return state

    def ask_now(self, tr: Transaction) -> Now:
        current = tr.snapshot.get(self.round_key)
        return lambda: _round_of(current.value)

    def round_in(self, pointer: bytes) -> int:
        return min(int.from_bytes(pointer[:_ROUND_BYTES], "big"), ROUND_MAX)

    def begin(self, state: KeyState, now: int) -> KeyState:
        return replace(state, round=now + 1, used=0)

    def tell(self, tr: Transaction, state: KeyState) -> None:
        if state.used:  # otherwise `after` has begun a new round, without a taken task yet
            tr.max(self.round_key, state.round.to_bytes(_ROUND_BYTES, "little"))

    def turn(self, state: KeyState, ahead: Sequence[Record], record: Record, now: int) -> int:
        """The round of `record`, behind the tasks of its key `ahead`."""
        for earlier in ahead:
            state = self.after(state, [earlier], 0, now)
        return self._turn(state, record)[0]

    def of_this_round(self, tr: Transaction, limit: int) -> Iterator[Record]:
        """At most `limit` tasks that come before the next round. Reads by snapshot."""
        now = self.ask_now(tr)()
        places = self.places(tr, limit)
        return (record for _, record in takewhile(lambda at: at[0][:_ROUND_BYTES] <= _sorted(now), places))

    def _turn(self, state: KeyState, record: Record) -> tuple[int, int]:
        """The round of the last unit that the task needs, and the units of that round used after it."""
        weight = self._weights.get(record.key, 1)
        units = state.used + record.cost
        rounds = (units - 1) // weight
        return state.round + rounds, units - rounds * weight


def _round_of(value: bytes | None) -> int:
    """The current round; 0 for a damaged value."""
    round_ = int.from_bytes(value or b"", "little")
    return round_ if round_ < ROUND_MAX else 0


def _sorted(round_: int) -> bytes:
    return round_.to_bytes(_ROUND_BYTES, "big")
