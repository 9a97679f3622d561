"""The rules of the soak find each kind of damage in made-up notes, and accept each sound case."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fdbqueue.testing.history import REFUSED, Call
from tests.system.soak.client import Setup
from tests.system.soak.counting import judged
from tests.system.soak.rules import LAST, Evidence, Stored, Strike
from tests.system.soak.subjects import SUBJECTS

SETUP = Setup("memory:", tuple(SUBJECTS))
S = 1_000_000


def call(name: str, argument: Any, at: float, result: Any = None, process: str = "a") -> Call:
    """A call that lasts for half a second from the second `at`."""
    return Call(process, name, argument, round(at * S), round((at + 0.5) * S), result)


def unknown(name: str, argument: Any, at: float, process: str = "a") -> Call:
    return Call(process, name, argument, round(at * S))


def put(values: str, at: float, process: str = "a") -> Call:
    return call("put", values.split(), at, process=process)


def take(value: str, token: str, at: float, process: str = "a") -> Call:
    return call("take", 1, at, [[value, token]], process)


def end(name: str, value: str, token: str, at: float, process: str = "a") -> Call:
    return call(name, [[value, token]], at, process=process)


def handled(value: str, at: float, process: str = "a") -> list[Call]:
    """A take and a finish, two seconds."""
    return [take(value, f"t{value}", at, process), end("finish", value, f"t{value}", at + 1, process)]


def evidence(*calls: Call, strikes: Sequence[Strike] = (), **stored: Any) -> Evidence:
    """Notes, with an effect of each value that was finished or consumed."""
    finished = [value for each in calls if each.name == "finish" for value, _ in each.argument]
    finished += [value for each in calls if each.name == "consume" for value in each.result]
    return Evidence(calls, Stored(**{"effects": dict.fromkeys(finished, 1), **stored}), strikes)


ONE_LEFT = evidence(put("x y", 0), *handled("x", 1), left=["y"])
KEYS = evidence(put("k/1 k/2", 0), *handled("k/1", 1), *handled("k/2", 3))
LASTS = [put("x", 0, LAST), put("y", 1, LAST)]
PRIORITIES = [put("1/x", 0, LAST), put("0/y", 1, LAST)]
GROUP = [call("open", ["g/then"], 0), put("g/0", 1), call("close", "g", 2), *handled("g/0", 3)]
SLOTS = [put("k/1 k/2 k/3", 0), *(take(f"k/{n}", f"tk/{n}", n) for n in (1, 2, 3))]
HANDED = [put("k/1", 0), take("k/1", "t", 1), call("hand off", ["k/1", "t", 1, 30.0], 2)]
LOST_ATTEMPT = call("failures", ["k/1", 2], 42, [])
BATCH = [put("x y", 0), take("x", "t", 1), take("y", "t", 1)]
OF_ONE = call("batch", ["b", [["x", "t"], ["y", "t"]]], 2)
SIX, MANY = "a/1 a/2 b/1 b/2 c/1 c/2", " ".join(f"k/{n}" for n in range(40))
DUE = "1.25/2026-11-25T10:00:0"

SOUND: dict[str, tuple[str, Evidence]] = {
    "a hand-off with a ttl that ends before the lease would": (
        "handed",
        evidence(
            put("k/1", 0),
            take("k/1", "t", 1),
            call("hand off", ["k/1", "t", 1, 0.3], 1.5),
            *handled("k/1", 2),
        ),
    ),
    "a take that began before another one, whose value was released": (
        "leases",
        evidence(
            put("x", 0),
            Call("a", "take", 1, S, 3 * S, [["x", "t"]]),
            take("x", "s", 1.25, "b"),
            end("release", "x", "s", 1.8, "b"),
            end("finish", "x", "t", 3),
        ),
    ),
    "nothing": ("leases", evidence()),
    "all handled": ("leases", evidence(put("x", 0), *handled("x", 1))),
    "an unknown put that was done": ("leases", evidence(unknown("put", ["x"], 0), *handled("x", 1))),
    "an unknown put that was not": ("leases", evidence(unknown("put", ["x"], 0))),
    "an unknown ack that was done": (
        "leases",
        evidence(put("x", 0), take("x", "t", 1), unknown("ack", [["x", "t"]], 2)),
    ),
    "an unknown ack that was not": (
        "leases",
        evidence(put("x", 0), take("x", "t", 1), unknown("ack", [["x", "t"]], 2), *handled("x", 5)),
    ),
    "an unknown dequeue of a value": ("items", evidence(put("x", 0), unknown("dequeue", 1, 1))),
    "a value again after its lease": ("leases", evidence(put("x", 0), take("x", "t", 1), *handled("x", 4))),
    "a value again after its release": (
        "leases",
        evidence(put("x", 0), take("x", "t", 1), end("release", "x", "t", 1.6), *handled("x", 2.2)),
    ),
    "a value again after a kill": (
        "leases",
        evidence(
            put("x", 0), take("x", "t", 1), *handled("x", 2, "b"), strikes=[Strike("a", round(1.9 * S))]
        ),
    ),
    "a brief value that has expired": ("priorities", evidence(put("9/x", 0))),
    "keys in turn": ("keyed", KEYS),
    "a group and then": ("groups", evidence(*GROUP, *handled("g/then", 6))),
    "a group that is not closed": ("groups", evidence(*GROUP[:2], *handled("g/0", 3))),
    "two tasks of a key at a time": (
        "altered",
        evidence(*SLOTS, *(end("finish", f"k/{n}", f"tk/{n}", at) for n, at in ((1, 1.6), (2, 3), (3, 4)))),
    ),
    "tasks in the slots of a key, one after the other": (
        "slots",
        evidence(*SLOTS, *(end("finish", f"k/{n}", f"tk/{n}", at) for n, at in ((1, 1.6), (2, 3), (3, 4)))),
    ),
    "starts with the tokens of a key": (
        "rates",
        evidence(
            put(MANY, 0), *(each for n, value in enumerate(MANY.split()) for each in handled(value, n / 20))
        ),
    ),
    "due times": ("schedules", evidence(*handled(f"{DUE}0.00", 0), *handled(f"{DUE}1.25", 2))),
}

BROKEN: dict[str, tuple[str, Evidence, str]] = {
    "a lost task": ("leases", evidence(put("x y", 0), *handled("x", 1)), "lost: 1, the first of them y"),
    "more lost than an unknown dequeue asked for": (
        "items",
        evidence(put("x y", 0), unknown("dequeue", 1, 1)),
        "lost: 2, the first of them x, y",
    ),
    "an effect twice": ("leases", evidence(put("x", 0), *handled("x", 1), effects={"x": 2}), "twice: 1"),
    "an ack beside an effect": (
        "leases",
        evidence(put("x", 0), *handled("x", 1), take("x", "u", 1), end("ack", "x", "u", 1.6)),
        "twice: 1, the first of them x",
    ),
    "an item that is there twice": ("items", evidence(put("x", 0), left=["x", "x"]), "twice: 1"),
    "an item that is there after its end": (
        "items",
        evidence(put("x", 0), call("dequeue", 1, 1, ["x"]), left=["x"]),
        "twice: 1, the first of them x",
    ),
    "a task after its end": (
        "leases",
        evidence(put("x", 0), *handled("x", 1), take("x", "u", 9)),
        "given after its end: x",
    ),
    "a value of no put": ("items", evidence(call("consume", 1, 0, ["z"])), "from nowhere: 1"),
    "an end without its effect": (
        "leases",
        evidence(put("x", 0), *handled("x", 1), effects={}),
        "told as done, without its effect: 1",
    ),
    "a task that no take gives": ("leases", ONE_LEFT, "stuck: 1, the first of them y"),
    "a counter": (
        "items",
        evidence(counters={"values": (1, 0)}),
        "the counter of values says 1, there are 0",
    ),
    "a total of acks": (
        "leases",
        evidence(put("x", 0), *handled("x", 1), totals={"acks": 2}),
        "the counter of acks says 2, the notes tell of 1 to 1",
    ),
    "a finding of a verification": ("items", evidence(findings=["verify, timer"]), "verify, timer"),
    "two live leases": (
        "leases",
        evidence(put("x", 0), take("x", "t", 1), take("x", "u", 2, "b"), end("finish", "x", "t", 3)),
        "two live leases: x",
    ),
    "a lease that is over too early": (
        "leases",
        evidence(put("x", 0), take("x", "t", 1), *handled("x", 2, "b")),
        "given again 1.500 s after its take: x",
    ),
    "keys in another order": (
        "keyed",
        evidence(put("k/1 k/2", 0), *handled("k/2", 1), *handled("k/1", 3)),
        "k/2 has ended before k/1, which was put before it",
    ),
    "keys of two puts in another order": (
        "partitions",
        evidence(put("k/1", 0), put("k/2", 1, "b"), *handled("k/2", 2), *handled("k/1", 4)),
        "k/2 has ended before k/1, which was put before it",
    ),
    "two tasks of a key": (
        "keyed",
        evidence(
            put("k/1 k/2", 0),
            take("k/1", "t", 1),
            take("k/2", "u", 2),
            end("finish", "k/1", "t", 4),
            end("finish", "k/2", "u", 5),
        ),
        "two live leases of the key k: k/1, k/2",
    ),
    "items in another order": (
        "items",
        evidence(*LASTS, call("consume", 1, 2, ["y"], LAST), call("consume", 1, 3, ["x"], LAST)),
        "out of order: y, x in place of x, y",
    ),
    "priorities in another order": (
        "priorities",
        evidence(*PRIORITIES, *handled("1/x", 2, LAST), *handled("0/y", 4, LAST)),
        "out of order: 1/x, 0/y in place of 0/y, 1/x",
    ),
    "more tasks of a key than any change has allowed": (
        "altered",
        evidence(*SLOTS, *(end("finish", f"k/{n}", f"tk/{n}", 4) for n in (1, 2, 3))),
        "3 tasks under the 2 slots of the key k",
    ),
    "more tasks of a key than it has slots": (
        "slots",
        evidence(*SLOTS, *(end("finish", f"k/{n}", f"tk/{n}", 4) for n in (1, 2, 3))),
        "3 tasks under the 2 slots of k",
    ),
    "more tasks than all slots": (
        "slots",
        evidence(
            put(SIX, 0),
            *(take(value, f"t{value}", 1) for value in SIX.split()),
            *(end("finish", value, f"t{value}", 2) for value in SIX.split()),
        ),
        "6 tasks under the 5 slots of soak of all",
    ),
    "more starts of a key than it has tokens": (
        "rates",
        evidence(put(MANY, 0), *(each for value in MANY.split() for each in handled(value, 1))),
        "40 starts of k within 1.0 s, with 35 tokens",
    ),
    "a hand-off that ends before its ttl": (
        "handed",
        evidence(*HANDED, *handled("k/1", 9)),
        "given 7.500 s after its hand-off for 30.0 s: k/1",
    ),
    "a hand-off that ends with its holder": (
        "handed",
        evidence(*HANDED, *handled("k/1", 9), strikes=[Strike("a", 3 * S)]),
        "given 7.500 s after its hand-off for 30.0 s: k/1",
    ),
    "a hand-off that is completed and failed": (
        "handed",
        evidence(*HANDED, end("finish", "k/1", "t", 5), end("release", "k/1", "t", 6)),
        "2 ends of one hand-off: k/1",
    ),
    "an ack by the token of before a hand-off": (
        "handed",
        evidence(*HANDED, end("late ack", "k/1", "t", 3), end("finish", "k/1", "t", 5)),
        "acked by the token of before its hand-off: k/1",
    ),
    "a hand-off that is no failed attempt": (
        "handed",
        evidence(*HANDED, *handled("k/1", 40), LOST_ATTEMPT),
        "attempt 1 of k/1 was handed off, and has the failures []",
    ),
    "a decision that is not followed": (
        "batched",
        evidence(*BATCH, call("bury", [["x", "t"]], 2, "succeeded"), *handled("x", 3), *handled("y", 5)),
        "bury of x in a batch has ended as succeeded",
    ),
    "a batch that is told as acked, and is not": (
        "batched",
        evidence(*BATCH, OF_ONE, end("finish", "x", "t", 2), end("finish", "y", "t", 2), batches={}),
        "batch b tells of 2 acks, its transaction of 0",
    ),
    "a part of a batch": (
        "batched",
        evidence(*BATCH, effects={"x": 1}, left=["y"], batches={"b": [["x", "t"], ["y", "t"]]}),
        "batch b was committed in part: 1, the first of them y",
    ),
    "a task in two batches": (
        "batched",
        evidence(*BATCH, effects={"x": 1, "y": 1}, batches={"b": [["x", "t"]], "c": [["x", "u"]]}),
        "acked by two batches: 1, the first of them x",
    ),
    "a buried task that is gone": (
        "batched",
        evidence(*BATCH, end("bury", "x", "t", 2), call("buried", None, 3, [])),
        "buried, and not there: 1, the first of them x",
    ),
    "a buried task of no decision": (
        "batched",
        evidence(*BATCH, call("buried", None, 3, ["x"])),
        "there, and never buried: 1, the first of them x",
    ),
    "a due time without a task": (
        "schedules",
        evidence(*handled(f"{DUE}0.00", 0), *handled(f"{DUE}2.50", 2)),
        "no task for a due time of every 1.25 s between 2026-11-25 10:00:00 and 2026-11-25 10:00:02.5",
    ),
    "a due time with two tasks": (
        "schedules",
        evidence(*handled(f"{DUE}0.00", 0), effects={f"{DUE}0.00": 2}),
        f"twice: 1, the first of them {DUE}0.00",
    ),
    "a group without its then": ("groups", evidence(*GROUP), "no then: 1, the first of them g/then"),
    "then before the end of a member": (
        "groups",
        evidence(*GROUP[:3], *handled("g/then", 3), *handled("g/0", 6)),
        "then was given before the end of g/0",
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_case_has_no_finding(name: str) -> None:
    subject, given = SOUND[name]
    assert judged(SUBJECTS[subject](SETUP), given).findings == ()


@pytest.mark.parametrize("name", BROKEN)
def test_a_planted_bug_is_found(name: str) -> None:
    subject, given, wanted = BROKEN[name]
    found = judged(SUBJECTS[subject](SETUP), given).findings
    assert any(finding.startswith(wanted) for finding in found), found


def test_a_refused_call_has_ended_nothing() -> None:
    refused = replace(end("ack", "x", "t", 4), result=REFUSED)
    given = evidence(put("x", 0), take("x", "t", 1), refused, *handled("x", 5))
    assert judged(SUBJECTS["leases"](SETUP), given).findings == ()


def test_the_numbers_of_a_subject_are_told() -> None:
    given = evidence(put("x y", 0), take("x", "t", 1), unknown("ack", [["x", "t"]], 2), *handled("x", 5))
    count = judged(SUBJECTS["leases"](SETUP), given)
    assert (count.put, count.ended, count.again, count.unknown) == (2, 1, 1, 1)
    assert str(count).split() == ["leases", "2", "1", "1", "1"]
