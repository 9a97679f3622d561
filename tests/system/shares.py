"""Shares: how many seeds `make simulate` gives to a workload, beside its cost.

A share of 2 means twice the seeds of a workload with the share 1 and the same cost. Workloads without an
entry have USUAL. Planted bugs are those of `tests/simulation/planted.py`; new bugs, those of authors who knew
none of the planted ones (docs/tests.md).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

USUAL = 1.0


class Share(NamedTuple):
    seeds: float
    reason: str
    workloads: str


SHARES: Sequence[Share] = (
    Share(
        6.0,
        "the features of a task queue meet in one model; most states that 35 s have missed are there",
        "exact_mixed",
    ),
    Share(
        4.0,
        "a model has the right answer of every verb; 15 planted bugs in one, five new ones in the other",
        "exact composed",
    ),
    Share(
        3.0,
        "a model of one part: each answer, row and time is right to the microsecond",
        "exact_defaults exact_elements exact_fair exact_groups exact_line exact_partitions "
        "exact_persistent exact_schedules exact_sessions",
    ),
    Share(
        3.0,
        "each pair of calls meets: it finds a missing conflict for sure",
        "paired paired_groups paired_limits paired_line paired_partitions paired_persistent "
        "paired_schedules paired_sessions",
    ),
    Share(3.0, "each commit of a call is in doubt: it finds a lost or doubled effect for sure", "doubted"),
    Share(
        3.0,
        "calls of several threads meet in each step: it finds an answer that goes to the wrong one",
        "together together_partitions",
    ),
    Share(
        2.5,
        "the waiting line, receipts and combined calls are below all queues; nine planted bugs or more each",
        "crowd recipe waits",
    ),
    Share(
        2.0,
        "a run of a few milliseconds, and races with one chance in forty seeds",
        "agreed exact_types interrupted_waits order",
    ),
    Share(
        1.5,
        "eight planted bugs or more each",
        "cancels emptied groups hooked item_partitions partitions processes schedules several "
        "takeover unique",
    ),
    Share(
        0.5,
        "two planted bugs or fewer each, in a part that other workloads run, too",
        "awaited_recipe awaited_tasks awaited_waits bank batches clearing closing fairness joined "
        "keyed named pipeline verified",
    ),
)
FLOOR = 0.5
"""No workload has less: else a promise that it alone judges has no seed in a minute."""
_SEEDS: Mapping[str, float] = {name: share.seeds for share in SHARES for name in share.workloads.split()}


def shares_of(names: Sequence[str]) -> list[float]:
    return [_SEEDS.get(name, USUAL) for name in names]
