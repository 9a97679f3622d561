"""Searches: each argument of each call is hostile in turn, or several at once. Rules judge the result."""

import queue
import random
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from time import monotonic
from typing import Any, Protocol, TypeVar

from fdbqueue import FdbQueueError
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.visible import visible
from tests.fuzz.calls import HOSTILE, Call, CallersError, calls
from tests.fuzz.world import HOSTILE_HERE, World

CONFLICT = 1020

MESSAGE_LENGTH_MAX = 1_000
PATIENCE_S = 20.0
READ_MAX = 20
TRANSACTIONS = frozenset({"transaction", "cancelled transaction", "snapshot"})
LABELS = [*HOSTILE, *HOSTILE_HERE]


class Tried(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Tried)


@dataclass(frozen=True)
class Trial:
    """A call, the labels of the hostile values that it is given, and whether it is given a transaction."""

    call: Call
    hostile: Mapping[str, str]
    within: bool = False

    @property
    def name(self) -> str:
        return self.call.name

    def __str__(self) -> str:
        given = ", ".join(f"{name}=<{label}>" for name, label in self.hostile.items())
        return f"{self.call.name}({given}){' in a transaction' if self.within else ''}"


@dataclass(frozen=True)
class Verdict:
    refused: bool
    violation: str = ""


def run(world: World, trial: Trial) -> Verdict:
    """Make the call. The contents of the database are restored afterwards."""
    verdict = _run_once(world, trial)
    if "refusal has changed" in verdict.violation:
        verdict = _run_once(world, trial)  # the thread that sweeps may have done it
    return verdict


def _run_once(world: World, trial: Trial) -> Verdict:
    world.refresh()
    before, began = world.image, monotonic()
    result, error = _made(world, trial)
    took_s = monotonic() - began
    world.forget(result)
    after = world.look()
    if after != before:
        world.restore(before)
    if took_s > PATIENCE_S:
        return Verdict(error is not None, f"it took {took_s:.0f} s")
    if error is None:
        return Verdict(False)
    violation = _violation(trial, error)
    if not violation and after != before and not trial.within and not _is_of_a_function(trial):
        changed = visible(repr(sorted(after.items() ^ before.items())[:2]))
        violation = f"a refusal has changed {changed[:300]} ({type(error).__name__})"
    return Verdict(True, violation)


def _made(world: World, trial: Trial) -> tuple[Any, BaseException | None]:
    """The result of the call, read to its end, or its error."""
    made = {name: _value(world, label) for name, label in trial.hostile.items()}
    transaction = None
    if trial.within and "tr" in trial.call.parameters and "tr" not in made:
        transaction = made["tr"] = world.db.create_transaction()
    try:
        function = trial.call.bound(world)
        positional, named = trial.call.arguments(world, made)
        result = function(*positional, **named)
        if hasattr(type(result), "__next__"):
            list(islice(result, READ_MAX))
        elif hasattr(type(result), "__enter__") and trial.call.name.endswith("transaction"):
            with result:
                pass
        if transaction is not None:
            transaction.commit().wait()  # where the engine checks keys and values
    except BaseException as error:
        return None, error
    return result, None


def _value(world: World, label: str) -> Any:
    return HOSTILE[label]() if label in HOSTILE else HOSTILE_HERE[label](world)


def _violation(trial: Trial, error: BaseException) -> str:
    """Why the error is none that a call may raise; empty if it is one."""
    if isinstance(error, CallersError):
        return ""
    if not _is_documented(trial, error):
        return f"{type(error).__name__} {_place_of(error)}"
    try:
        message = str(error)
    except Exception as failure:
        return f"str() of a {type(error).__name__} raises {type(failure).__name__}"
    if isinstance(error, FdbQueueError) and len(message) >= MESSAGE_LENGTH_MAX:
        return f"{type(error).__name__} with a message of {len(message)} characters {_place_of(error)}"
    if visible(message, keep="\n") != message and isinstance(error, FdbQueueError):
        return f"{type(error).__name__} with control characters {_place_of(error)}"
    return ""


def _is_documented(trial: Trial, error: BaseException) -> bool:
    of, _, method = trial.call.name.partition(".")
    if isinstance(error, engine_errors()):
        if trial.within and getattr(error, "code", 0) == CONFLICT:  # the world was restored under a plan
            return True
        # A transaction of the caller's may be cancelled; a session may not be told of its end in time.
        return bool(TRANSACTIONS & set(trial.hostile.values())) or method == "end_within"
    if _is_of_a_function(trial):
        return True
    if isinstance(error, OSError) and "path" in trial.hostile:
        return True
    if isinstance(error, NotImplementedError):
        return of == "NullQueue" or method == "get_path"
    if isinstance(error, queue.Empty | queue.Full):
        return of in ("Proxy", "PersistentQueue")
    return isinstance(error, FdbQueueError)


def _is_of_a_function(trial: Trial) -> bool:
    """The call has run a function that was given, maybe behind a commit: it is its error."""
    method = trial.call.name.rpartition(".")[2]
    return bool({("step", "function"), ("change", "progress")} & {(method, name) for name in trial.hostile})


def _place_of(error: BaseException) -> str:
    """Where in the library it was raised."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/fdbqueue/" in frame.filename]
    if not frames:
        return "outside of the library"
    return f"at {frames[-1].filename.rpartition('/fdbqueue/')[2]}:{frames[-1].lineno}"


HOSTILE_MAX = 3


@dataclass
class Found:
    """The counts of a search, and the trials that violate a rule, by call and violation."""

    trials: int = 0
    refused: int = 0
    violations: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __str__(self) -> str:
        lines = [f"{self.trials:,} calls, {self.refused:,} refused, {len(self.violations)} violations"]
        for violation, trials in sorted(self.violations.items()):
            lines.append(f"{violation}: {len(trials)} times, such as {trials[0]}")
        return "\n".join(lines)


def search(
    run: Callable[[T], Verdict], tried: Iterator[T], goes_on: Callable[[], bool] = lambda: True
) -> Found:
    """Run the trials, as long as the search goes on."""
    found = Found()
    for trial in tried:
        if not goes_on():
            break
        verdict = run(trial)
        found.trials += 1
        found.refused += verdict.refused
        if verdict.violation:
            found.violations[f"{trial.name}: {verdict.violation}"].append(str(trial))
    return found


def in_turn(chosen: random.Random, labels_each: int | None = None) -> Iterator[Trial]:
    """Each parameter of each call with hostile values: `labels_each` of them, or all."""
    for call in calls():
        for parameter in call.parameters:
            labels = LABELS if labels_each is None else chosen.sample(LABELS, labels_each)
            for label in labels:
                yield Trial(call, {parameter: label}, within=chosen.random() < 0.5)


def at_random(chosen: random.Random) -> Iterator[Trial]:
    """Some parameters of a call at once, without end."""
    several = [call for call in calls() if call.parameters]
    while True:
        yield _one_of(chosen, several)


def _one_of(chosen: random.Random, several: list[Call]) -> Trial:
    call = chosen.choice(several)
    count = chosen.randint(1, min(HOSTILE_MAX, len(call.parameters)))
    parameters = chosen.sample(call.parameters, count)
    return Trial(call, {name: chosen.choice(LABELS) for name in parameters}, within=chosen.random() < 0.5)
