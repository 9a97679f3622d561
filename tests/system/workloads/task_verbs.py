"""The effect of each call about one task on that task, as docs/tasks.md tells it."""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from tests.system.workloads.notes import Op, Seen
from tests.system.workloads.task_model import SLACK_S, Life, Rules

_OF_HOLDER = ("ack", "release", "touch", "renew")


class Effect(NamedTuple):
    shown: Life
    """The task as the call returns it."""
    stored: Life | None
    """The task as it is stored, None if it has gone."""
    calls: tuple[str, ...] = ()
    """The calls that are counted."""


def may(op: Op, life: Life) -> bool:
    """True if the call is right for a task with this life."""
    if op.verb == "take":
        return life.state == "r"
    if op.verb in _OF_HOLDER or op.token is not None:
        return life.state == "t" and life.token == op.token
    return True


def effect(op: Op, life: Life, seen: Seen) -> Effect:
    """The effect of a call that is right, and has returned `seen`."""
    if op.verb == "take":
        taken = life._replace(state="t", attempts=life.attempts + 1, until=seen.until, token=seen.token)
        return Effect(taken, taken, ("take",))
    if op.verb in ("ack", "delete"):
        return _gone(life, op.verb)
    if op.verb == "cancel":
        marked = life._replace(cancelled=True)
        return Effect(marked, marked) if life.state == "t" else _gone(life, "cancel")
    if op.verb in ("release", "bury"):
        return _gone(life, "cancel") if life.cancelled else _given_up(op, life, seen)
    longer = op.seconds if op.verb == "touch" else 0
    ttr = None if life.ttr is None else life.ttr + longer
    kept = life._replace(until=seen.until, expires=seen.expires, ttr=ttr)
    return Effect(kept, kept, ("touch",) if longer else ())


def _gone(life: Life, call: str) -> Effect:
    return Effect(life.freed(state="-"), None, (call,))


def _given_up(op: Op, life: Life, seen: Seen) -> Effect:
    if op.verb == "bury" and life.state == "!":
        return Effect(life, life)
    failures, orphaned = life.failures + op.failed, life.orphaned
    if op.verb == "bury":
        put_off = life.freed(state="!", failures=failures)
    else:
        orphaned = 0 if op.failed else orphaned
        put_off = life.freed(failures=failures, orphaned=orphaned, expires=seen.expires)
        if op.seconds:
            put_off = put_off._replace(state="~", until=seen.until)
    return Effect(put_off, put_off, (op.verb,))


def wrong_times(rules: Rules, op: Op, life: Life, seen: Seen) -> Iterator[str]:
    """Yield a sentence for each time in the answer that is wrong."""
    longer = op.seconds if op.verb in ("touch", "release") and seen.state != "-" else 0.0
    expires = None if life.expires is None else life.expires + longer
    if not near(seen.expires, expires):
        yield f"it expires at {seen.expires}, not at {expires}"
    if op.verb in ("take", "renew") and not (op.verb == "renew" and life.until is None):
        yield from wrong_time(op, seen.until, life.ttr, None if rules.kind == "utubettl" else expires)
    elif op.verb == "release" and seen.state == "~":
        yield from wrong_time(op, seen.until, op.seconds)
    elif op.verb == "touch" and life.until is not None and not near(seen.until, life.until + longer):
        yield f"its lease ends at {seen.until}, not at {life.until} + {longer}"


def near(one: float | None, other: float | None) -> bool:
    return one == other or (one is not None and other is not None and abs(one - other) < SLACK_S)


def wrong_time(op: Op, at: float | None, after_s: float | None, most: float | None = None) -> Iterator[str]:
    """Compare a time with the one `after_s` after the call, and at most `most`."""
    first, last = (None, None) if after_s is None else (op.began + after_s, op.ended + after_s)
    first, last = min(first or inf, most or inf), min(last or inf, most or inf)
    if not first - SLACK_S <= (at or inf) <= last + SLACK_S:
        yield f"the time is {at}, not {first} to {last}"
