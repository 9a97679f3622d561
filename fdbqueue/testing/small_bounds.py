"""Small bounds: of the runs of new seeds, three of ten have constants of `limits.py` so small that a few
tasks reach them.

Then a sweep has several batches, a page ends early, and bytes cut a batch short. The seed decides which
constants, and their values. A workload that sets one of them itself keeps its own value.
"""

from collections.abc import Mapping
from random import Random

_RUNS_P, _EACH_P = 0.3, 0.5
CHOICES: Mapping[str, tuple[int, ...]] = {
    # Batches of sweeps and verbs.
    "DUE_BATCH": (1, 2, 4),
    "VERB_BATCH": (2, 3, 8),
    "TAKEN_READ_MAX": (1, 2),
    "DEAD_SESSIONS_MAX": (1, 2),
    "QUEUES_PER_TRANSACTION": (1, 2),
    # Bytes.
    "BATCH_BYTES_MAX": (100, 400, 4_000),
    "BATCH_RECORDS_BYTES_MAX": (1_000, 10_000),
    "BATCH_HOLDERS_BYTES_MAX": (100, 1_000),
    "SERVE_BYTES_MAX": (20, 100, 1_000),
    "MOVED_BYTES_MAX": (100, 10_000),
    "RECORD_PAYLOAD_BYTES_MAX": (0, 3),
    "NOTICE_BYTES_MAX": (0, 40),
    # The line.
    "SERVE_MAX": (2, 5),
    "RESULTS_RETURNED_MAX": (1, 2),
    "OFFERS_TO_SPARE": (0, 1),
    # Groups and schedules.
    "GROUPS_SWEPT_MAX": (1, 3),
    "GROUPS_ENDED_MAX": (1, 2),
    "GROUPS_REMEMBERED_MAX": (1, 3),
    "SCHEDULE_FIRED_MAX": (1, 3),
    "SCHEDULES_DUE_READ": (1, 2),
    # Lanes and keys of limits.
    "LANES_READ_MAX": (1, 2),
    "LANE_TASKS_FIRST": (1, 2),
    "LANES_KEPT": (0, 1),
    "LANES_TURNED": (0, 2),
    "KEYS_SETTLED": (1, 2),
    "KEY_ROWS_WALKED": (2, 5),
    "KEYS_PASSED": (1, 3),
    "LIMITS_READ_TOGETHER": (1, 2),
    # Task keys with many tasks, acks of one process, and partitions.
    "KEY_LEVEL_MIN": (1, 2),
    "ACKS_APART_MAX": (0, 1),
    "ATTEMPTS_TOGETHER_MAX": (1,),
    "LOOKS_PER_CLEARING": (1, 3),
    "TAKES_PER_VISIT": (1, 2),
    "HOME_SESSIONS_MAX": (1, 2),
    "AMENDS_PER_BEAT": (1, 2),
    # The memory of a process, and the reads of a pass.
    "SERVICES_REMEMBERED": (1, 2),
    "NAMES_READ_FIRST": (1, 3),
    "SLICE_KEYS_MAX": (3, 20),
    "COUNTED_ROWS": (2, 10),
    # The embedded engine.
    "WATCHED_KEYS_LOOKED_AT_MAX": (0, 1),
    "RINGS_AT_ONCE": (1, 2),
    "KEYS_RUNG_MAX": (0, 3),
    "LOG_TRIMMED_MAX": (1, 4),
    "LOG_TRIMMED_EVERY_VERSIONS": (1, 3),
}


def drawn(seed: int) -> dict[str, float]:
    """The bounds of a run with their values; none in most runs."""
    random = Random(f"{seed} small bounds")
    if random.random() >= _RUNS_P:
        return {}
    return {name: random.choice(values) for name, values in CHOICES.items() if random.random() < _EACH_P}
