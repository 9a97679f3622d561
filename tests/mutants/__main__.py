"""Judge mutants of a room: `make mutants ROOM=line MINUTES=60`, or `python -m tests.mutants --help`.

A mutant is first given to the tests that run its lines, and then, if they pass, to the simulation. Each is
judged once: the next run goes on behind the last one. It writes only into .mutants/, which git ignores.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence

from tests.mutants.judges import Judges, Ledger, Limits, folder_of, tally, verdicts
from tests.mutants.mutant import REPOSITORY, ROOMS, Mutant, mutants_in
from tests.mutants.readers import Readers, workshop


def main() -> int:
    given = _parser().parse_args()
    ledger = Ledger(folder_of(REPOSITORY) / "judgements.jsonl")
    if not given.report:
        _judge(given, ledger)
    _report(given.room or list(ROOMS), given.seed, given.sample, ledger)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--room", action="append", choices=ROOMS, help="may be repeated; all if left out")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1, help="chooses the order of the mutants")
    parser.add_argument("--sample", type=int, help="the first mutants of each room only")
    parser.add_argument("--tests-s", type=float, default=Limits.tests_s, help="seconds of tests for a mutant")
    parser.add_argument("--simulation-s", type=float, default=Limits.simulation_s, help="seconds of CPU")
    parser.add_argument("--both", action="store_true", help="also simulate the mutants that tests have found")
    parser.add_argument("--survivors", action="store_true", help="judge the survivors again")
    parser.add_argument("--report", action="store_true", help="judge nothing")
    return parser


def _judge(given: argparse.Namespace, ledger: Ledger) -> None:
    until = time.monotonic() + given.minutes * 60
    readers = Readers(folder_of(REPOSITORY), REPOSITORY)
    with workshop(REPOSITORY) as copy:
        if not readers.record(copy, until, _tell):
            _tell("the time ended before all lines were recorded: run again, it goes on behind these")
            return
        judges = Judges(copy, readers, Limits(given.tests_s, given.simulation_s))
        for room, mutant in _in_turn(given.room or list(ROOMS), given.seed, given.sample):
            if time.monotonic() >= until:
                return
            with copy.holding(mutant):
                _judge_one(given, ledger, judges, room, mutant)


def _in_turn(rooms: Sequence[str], seed: int, sample: int | None) -> Iterator[tuple[str, Mutant]]:
    """One mutant of each room after the other."""
    left = {room: iter(mutants_in(room, seed)[:sample]) for room in rooms}
    while left:
        for room in list(left):
            mutant = next(left[room], None)
            if mutant is None:
                del left[room]
            else:
                yield room, mutant


def _judge_one(given: argparse.Namespace, ledger: Ledger, judges: Judges, room: str, mutant: Mutant) -> None:
    rows = ledger.rows()
    known = {judge: rows.get((mutant.id, judge)) for judge in ("tests", "simulation")}
    survived = not any(row and row["by"] for row in known.values())
    again = given.survivors and survived
    killed = not survived
    for name, judge in (("tests", judges.tests), ("simulation", judges.simulation)):
        if (known[name] is None or again) and (given.both or not killed):
            judgement = judge(mutant)
            ledger.add(room, mutant, judgement)
            killed = killed or judgement.killed
            _tell(f"{judgement.by or 'SURVIVED'} [{name}, {judgement.seconds} s] {mutant.id}")


def _report(rooms: Sequence[str], seed: int, sample: int | None, ledger: Ledger) -> None:
    rows, said = ledger.rows(), verdicts()
    print("| room | mutants | judged | found by tests | by simulation | by either | equivalent | found |")
    print("|---|---|---|---|---|---|---|---|")
    for room in rooms:
        known = [mutant.id for mutant in mutants_in(room, seed)]
        found = tally(known[:sample], rows, said)
        print(
            f"| {room} | {len(known)} | {found.judged} | {found.by_tests} | {found.by_simulation} "
            f"| {found.by_either} | {found.equivalent} | {found.share} |"
        )
        for id_ in found.open:
            row = rows[id_, "tests"]
            _tell(f"survivor: {id_}\n  line {row['line']}: {row['old']!r} -> {row['new']!r}")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
