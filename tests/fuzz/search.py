"""Searches for violations: each argument of each call in turn, or several at once, chosen by a seed."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.fuzz.calls import Call, calls
from tests.fuzz.trial import LABELS, Trial, run
from tests.fuzz.world import World

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


def search(world: World, trials: Iterator[Trial], goes_on: Callable[[], bool] = lambda: True) -> Found:
    """Run the trials, as long as the search goes on."""
    found = Found()
    for trial in trials:
        if not goes_on():
            break
        verdict = run(world, trial)
        found.trials += 1
        found.refused += verdict.refused
        if verdict.violation:
            found.violations[f"{trial.call.name}: {verdict.violation}"].append(str(trial))
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
