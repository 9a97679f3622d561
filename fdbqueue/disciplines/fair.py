"""Fair: rounds, in each of which every key that has something to give gives its share.

The pointer of a key stands at (the round in which its head's turn comes, the head's arrival), so that takers
find rounds in order, and in each the keys in the order of their heads' arrival. A key's share of a round is
its weight, 1 if none was given; a task of cost c comes with the last of the c shares that it needs, saved up
over rounds if need be. A key that had nothing to give begins in the round after the current one, which is
that of the last task taken: read by snapshot, written by an atomic maximum, so that nothing conflicts there.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from msgspec.structs import replace

from fdbqueue.disciplines.keyed import ROUND_MAX, Keyed, KeyState, Now
from fdbqueue.records.keys import Record, TaskKeys
from fdbqueue.seam import Transaction

_ROUND, _ROUND_BYTES = b"\x03", 8


class Fair(Keyed):
    """However many of a key are taken: its next is as available."""

    counts_taken = False

    def __init__(self, keys: TaskKeys, options: Mapping[str, Any]) -> None:
        super().__init__(keys, options)
        self._weights = {bytes.fromhex(key): weight for key, weight in (options["weights"] or {}).items()}
        self.round_key = keys.beside + _ROUND

    def place(self, record: Record) -> bytes:
        return record.id

    def open(self, state: KeyState) -> bool:  # noqa: ARG002  # whoever waits may be taken
        return True

    def point(self, state: KeyState, head: Record) -> bytes:
        round_, _ = self._turn(state, head)
        return _sorted(round_) + head.id

    def after(self, state: KeyState, took: Sequence[Record], freed: int, now: int) -> KeyState:  # noqa: ARG002  # nobody's turn
        for record in took:
            round_, used = self._turn(state, record)
            state = replace(state, round=round_, used=used)
            if round_ < now:
                # It stood in a round that is over, because it began when somebody was just ending that: what
                # it missed it does not make up for at the expense of the others.
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
        if state.used:  # else the round of the last task was over already, and the next has not begun
            tr.max(self.round_key, state.round.to_bytes(_ROUND_BYTES, "little"))

    def of_this_round(self, tr: Transaction, limit: int) -> Iterator[Record]:
        """Those to come before the next round, up to `limit`, by snapshot."""
        now = self.ask_now(tr)()
        places = self.places(tr, limit)
        return (record for _, record in takewhile(lambda at: at[0][:_ROUND_BYTES] <= _sorted(now), places))

    def _turn(self, state: KeyState, record: Record) -> tuple[int, int]:
        """The round of the last share that the task needs, and how many of that round are used then."""
        weight = self._weights.get(record.key, 1)
        shares = state.used + record.cost
        rounds = (shares - 1) // weight
        return state.round + rounds, shares - rounds * weight


def _round_of(value: bytes | None) -> int:
    """The current round; 0 for a value that is none."""
    round_ = int.from_bytes(value or b"", "little")
    return round_ if round_ < ROUND_MAX else 0


def _sorted(round_: int) -> bytes:
    return round_.to_bytes(_ROUND_BYTES, "big")
