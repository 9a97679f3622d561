"""Statistics: counters that change in the transaction of the change that they count.

All counters of a kind share one key, as one long little-endian number with 64 bits for each: a single
atomic add changes any of them, down as well as up, because borrows and carries in any order lead to the
same sum of non-negative fields.
"""

from collections.abc import Mapping, Sequence

from fdbqueue.core.task import TaskState

Statistics = dict[str, dict[str, int]]

LIVE = ("ready", "taken", "buried", "delayed")
LIVE_OF: dict[str, str] = {
    TaskState.READY: "ready",
    TaskState.TAKEN: "taken",
    TaskState.BURIED: "buried",
    TaskState.DELAYED: "delayed",
}
CALLS = (
    "put",
    "take",
    "ack",
    "release",
    "bury",
    "kick",
    "delete",
    "touch",
    "ttl",
    "ttr",
    "delay",
    "done",
    "other",
    "cancel",
)
"""`done` is reported with the tasks. New ones go to the end.

`other` counts changes that no statistic reports, because the key of these counters is the doorbell of the
line.
"""

_FIELD_BITS = 64
_MASK = (1 << _FIELD_BITS) - 1
ONE_LIVE = {state: 1 << (_FIELD_BITS * LIVE.index(name)) for state, name in LIVE_OF.items()}
"""One more task of a state, in the number of LIVE."""
ONE_CALL = {call: 1 << (_FIELD_BITS * at) for at, call in enumerate(CALLS)}
"""One more call, in the number of CALLS."""
LIVE_BYTES, CALLS_BYTES = 8 * len(LIVE), 8 * len(CALLS)
LIVE_MASK, CALLS_MASK = (1 << (8 * LIVE_BYTES)) - 1, (1 << (8 * CALLS_BYTES)) - 1
"""Fields may be negative while they are added up: the numbers are stored modulo these."""


def packed(fields: tuple[str, ...], changes: Mapping[str, int]) -> bytes:
    bits = _FIELD_BITS * len(fields)
    total = 0
    for name, change in changes.items():
        total += change << (_FIELD_BITS * fields.index(name))
    return (total & ((1 << bits) - 1)).to_bytes(bits // 8, "little")


def unpacked(fields: tuple[str, ...], value: bytes | None) -> dict[str, int]:
    total = int.from_bytes(value or b"", "little")
    return {name: (total >> (_FIELD_BITS * n)) & _MASK for n, name in enumerate(fields)}


def count_of(live: bytes | None) -> int:
    return sum(unpacked(LIVE, live).values())


def statistics_of(live: bytes | None, calls: bytes | None) -> Statistics:
    tasks, done = unpacked(LIVE, live), unpacked(CALLS, calls)
    counts = {**tasks, "done": done.pop("done"), "total": sum(tasks.values())}
    done.pop("other")
    return {"tasks": counts, "calls": done, "ends": ends_of(done)}


def summed(found: Sequence[Statistics]) -> Statistics:
    """The statistics of several partitions, which all have the same names, as those of one queue."""
    return {
        part: {name: sum(one[part][name] for one in found) for name in names}
        for part, names in found[0].items()
    }


def ends_of(calls: Mapping[str, int]) -> dict[str, int]:
    """The ends of tasks: acked, expired, deleted and cancelled ones are done; a buried one may be kicked."""
    # An expiry counts as a delete, too, as in the reference.
    return {
        "acked": calls["ack"],
        "expired": calls["ttl"],
        "deleted": calls["delete"] - calls["ttl"],
        "cancelled": calls["cancel"],
        "buried": calls["bury"],
    }
