"""New seeds at every commit: one of each workload, five within half a second, fifty within a fifth of one.

The first seed is derived from the commit, so that each commit tries other seeds and a failure can be
repeated; FDBQUEUE_TEST_SLOW=1 gives each workload five minutes of them.
"""

import gc
import threading
import time
from collections.abc import Callable

import pytest

from fdbqueue.testing import Case, check
from tests.commit import first_seed
from tests.system.workloads import all_workloads

BOUNDS = ((1, float("inf")), (5, 0.5), (50, 0.2))
"""Numbers of seeds, and the seconds of a processor within which they begin."""
LONG_S = 300.0


@pytest.mark.parametrize("name", sorted(all_workloads()))
def test_new_seeds_are_clean(name: str, rounds: Callable[[float, float], float]) -> None:
    workload, first, threads = all_workloads()[name], first_seed(), set(threading.enumerate())
    seed, until, began_s = first, time.monotonic() + rounds(0.0, LONG_S), time.process_time()
    while time.monotonic() < until or is_to_go_on(seed - first, time.process_time() - began_s):
        check(workload, [seed])
        seed += 1
    gc.collect()
    assert set(threading.enumerate()) <= threads, "a run left a thread, which slows all tests after it down"


def is_to_go_on(seeds: int, cpu_s: float) -> bool:
    return any(seeds < count and cpu_s < bound_s for count, bound_s in BOUNDS)


# Seeds that found a bug, by workload.
REGRESSIONS = {
    "acks": (111_378_202,),
    "awaited_waits": (260_000_182,),
    "crowd": (200_016, 200_055, 200_252),
    "closing": (5_000_108,),
    "composed": (270_000_023, 400_000_342, 97_046),
    "damaged": (240_406_028,),
    "doubted": (31_000_003,),
    "elements": (240_405_117,),
    "exact": (70_205,),
    "exact_sessions": (240_405_858,),
    "groups": (420_988_217,),
    "interrupts": (1_908, 9_100_043),
    "late": (93_000_656, 93_002_243, 721_932_805),
    "paired": (240_405_718, 131_520_458, 149_759_474),
    "partitions": (6_711, 10_571),
    "results": (1_389,),
    "serial": (240_406_094, 85_719_308, 580_933_730),
    "takeover": (511_000_077, 9_500_101),
    "temporary": (7_000_543,),
    "told": (1_559_249_750,),
    "unavailable": (260_000_217,),
    "unflushed": (2_138_702_519,),
    "waits": (260_000_323,),
}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, seeds in REGRESSIONS.items() for seed in seeds]
)
def test_a_seed_that_found_a_bug_is_clean(name: str, seed: int) -> None:
    result = Case.of(all_workloads()[name], seed).run()
    assert result.violations == ()
