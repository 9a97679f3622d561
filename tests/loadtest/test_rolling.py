"""Each promise of the drill of a rolling upgrade can be broken, and a small run keeps them all."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadtest.drills import rolling

ONE = rolling.Replaced("a:1", held=2, began_s=1.0, drained_s=1.0, exit_status=0)
SOUND = rolling.Report((ONE, ONE), put=100, lost=0, twice=0, left=0, mixed=True, at_the_end={rolling.NEW: 2})


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"lost": 1}, "no task is lost"),
        ({"left": 1}, "no task is lost"),
        ({"twice": 1}, "begins twice"),
        ({"put": 1}, "a load"),
        ({"replaced": (ONE, replace(ONE, exit_status=1))}, "status 0"),
        ({"mixed": False}, "several releases"),
        ({"at_the_end": {rolling.NEW: 1, rolling.OLD: 1}}, "new release"),
    ],
)
def test_each_broken_promise_is_told(change: dict[str, Any], broken: str) -> None:
    [told] = replace(SOUND, **change).broken()
    assert broken in told


@pytest.mark.in_turn(4)
def test_a_small_fleet_is_upgraded_under_load(tmp_path: Path) -> None:
    report = rolling.drill(f"embedded:{tmp_path}/queues", 2, per_s=20.0)
    assert report.broken() == []
    assert len(list(report.lines())) == 4
