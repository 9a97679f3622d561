"""The ledger of judgements, one JSON line each, and the verdicts about survivors."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.mutants.judges import Judgement
from tests.mutants.mutant import Mutant

VERDICTS = Path(__file__).with_name("verdicts.toml")


class Ledger:
    """A file that several runs may add to. The last judgement of a mutant by a judge counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, room: str, mutant: Mutant, judgement: Judgement) -> None:
        row = {
            "room": room,
            "id": mutant.id,
            "line": mutant.lines.start,
            "operator": mutant.operator,
            "old": mutant.old,
            "new": mutant.new,
            **asdict(judgement),
        }
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")

    def rows(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The rows by mutant and judge. A last line that a killed run has cut is left out."""
        if not self._path.exists():
            return {}
        rows = [json.loads(line) for line in self._path.read_text().splitlines() if line.endswith("}")]
        return {(row["id"], row["judge"]): row for row in rows}


def verdicts() -> dict[str, dict[str, str]]:
    """For each mutant with a verdict: `verdict` (`equivalent` or `test`), `why`, and the change."""
    found: dict[str, dict[str, str]] = tomllib.loads(VERDICTS.read_text())
    return found


@dataclass(frozen=True)
class Tally:
    """The judged mutants of a room."""

    judged: int
    by_tests: int
    by_simulation: int
    by_either: int
    equivalent: int
    open: tuple[str, ...]
    """Survivors without a verdict."""

    @property
    def share(self) -> str:
        """The share of the mutants that can be found; a dash if none of them was judged."""
        can_be_found = self.judged - self.equivalent
        return f"{self.by_either / can_be_found:.0%}" if can_be_found else "-"


def tally(
    known: Iterable[str],
    rows: Mapping[tuple[str, str], Mapping[str, Any]],
    said: Mapping[str, Mapping[str, str]],
) -> Tally:
    """The tally of the mutants in `known` that have been judged."""
    by = {
        judge: {id_ for id_ in known if rows.get((id_, judge), {}).get("by")}
        for judge in ("tests", "simulation")
    }
    judged = {id_ for id_ in known if (id_, "tests") in rows}
    killed = (by["tests"] | by["simulation"]) & judged
    left = judged - killed
    equivalent = {id_ for id_ in left if said.get(id_, {}).get("verdict") == "equivalent"}
    return Tally(
        len(judged),
        len(by["tests"]),
        len(by["simulation"]),
        len(killed),
        len(equivalent),
        tuple(sorted(left - equivalent)),
    )
