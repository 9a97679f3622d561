"""`python -m tests.system`, and its report of a failure."""

import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import fdbqueue
from fdbqueue.core import limits
from fdbqueue.testing import Case, Result, check
from fdbqueue.testing.cases import CHOICES, shrunk
from fdbqueue.testing.engine import KINDS
from fdbqueue.testing.simulate import in_turn, new_cases, spared_by
from tests.simulation.planted import PLANTS, planted
from tests.system.__main__ import run as main
from tests.system.nearness import FLOOR, ROOMS, SHARES, near, shares_of
from tests.system.workloads import all_workloads

LOSES_COUNT = next(plant for plant in PLANTS if plant.what == "a counter changed outside the transaction")


def test_a_range_of_seeds_runs_one_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "0:3", "--workload", "bank"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("3 seeds, ")
    assert "bank" in said
    assert "recipe" not in said


def test_the_list_has_a_sentence_about_each_workload(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert {*listed} == {*all_workloads()}
    assert len({*listed.values()}) == len(listed)


def test_minutes_end_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "0.005", "--workload", "bank", "--from", "5"]) == 0
    assert " virtual hours" in capsys.readouterr().out


def test_a_run_of_new_seeds_names_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--minutes", "0.005", "--workload", "bank"])
    said = capsys.readouterr().out
    assert re.match(r"seeds from \d+ on\n\d+ seeds, ", said)


def test_a_cheap_workload_gets_more_seeds() -> None:
    cheap, dear = (all_workloads()[name] for name in ("rings", "tasks"))
    times, seeds = [0.0], Counter[str]()
    for seed, workload in islice(in_turn([dear, cheap], 5, lambda: times[-1]), 60):
        assert seed == 5 + seeds[workload.name]
        seeds[workload.name] += 1
        times.append(times[-1] + (1.0 if workload is cheap else 25.0))
    assert seeds == {"rings": 50, "tasks": 10}


def test_a_workload_that_has_met_many_bugs_gets_more_seeds() -> None:
    names = ("exact", "tasks", "named")
    times, seeds = [0.0], Counter[str]()
    cases = in_turn([all_workloads()[name] for name in names], 5, lambda: times[-1], shares_of)
    for _, workload in islice(cases, 55):
        seeds[workload.name] += 1
        times.append(times[-1] + 1.0)
    assert seeds == {"exact": 40, "tasks": 10, "named": 5}


def test_each_workload_is_near_to_a_room_of_the_package() -> None:
    assert {name for names in ROOMS.values() for name in names.split()} == {*all_workloads()}
    package = Path(fdbqueue.__path__[0])
    assert [room for room in ROOMS if not [*package.rglob(room), *package.rglob(f"{room}.py")]] == []
    assert near(["fdbqueue/core/limits.py"]) == frozenset()
    assert near(["fdbqueue/tasks/parted.py"]) == {*ROOMS["tasks/parted"].split()}


def test_near_workloads_run_alone_at_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--minutes", "0.02", "--from", "5", "--near", "fdbqueue/core/partitions.py"]) == 0
    alone = capsys.readouterr().out.split(" virtual hours\n")[1].split("  fault ")[0]
    ran = {line.split()[0] for line in alone.splitlines()[1:]}
    assert ran <= near(["fdbqueue/core/partitions.py"])


def test_near_to_no_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--near", "fdbqueue/core/limits.py"])
    assert (
        "no workload is near to 'fdbqueue/core/limits.py': name a file below one of aio,"
        in capsys.readouterr().err
    )


def test_each_share_is_that_of_workloads_and_has_a_reason() -> None:
    names = [name for share in SHARES for name in share.workloads.split()]
    assert len(names) == len({*names})
    assert {*names} <= {*all_workloads()}
    assert all(share.reason and share.seeds >= FLOOR for share in SHARES)


def test_three_of_ten_runs_of_new_seeds_have_small_bounds() -> None:
    cases = islice(new_cases([all_workloads()["tasks"]], 0, lambda: 0.0), 200)
    assert 40 < sum(bool(case.bounds) for case in cases) < 80


def test_small_bounds_are_printed_and_end_with_their_run(capsys: pytest.CaptureFixture[str]) -> None:
    before = {name: getattr(limits, name) for name in CHOICES}
    cases = (replace(Case.of(all_workloads()["recipe"], seed), small_bounds=True) for seed in range(50))
    small = next(case for case in cases if "SERVE_BYTES_MAX" in case.bounds)
    assert main(small.command().split()[3:]) == 0
    assert f"SERVE_BYTES_MAX={small.bounds['SERVE_BYTES_MAX']:g}" in capsys.readouterr().out
    assert {name: getattr(limits, name) for name in CHOICES} == before


def test_every_other_run_of_new_seeds_goes_without_most_faults() -> None:
    spared = [len(spared_by(seed)) for seed in range(100)]
    assert 30 < spared.count(0) < 70
    assert set(spared) & set(range(len(KINDS) // 2)) == {0}


def test_ctrl_c_prints_the_counts_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs: list[Case] = []
    run = Case.run

    def interrupted(case: Case) -> Result:
        runs.append(case)
        if len(runs) > 3:
            raise KeyboardInterrupt
        return run(case)

    monkeypatch.setattr(Case, "run", interrupted)
    assert main(["--seeds", "0:10", "--workload", "bank"]) == 130
    assert capsys.readouterr().out.startswith("3 seeds, ")


def test_trace_prints_a_readable_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1", "--workload", "recipe", "--trace"]) == 0
    said = capsys.readouterr().out
    assert "transaction 1 committed" in said
    assert "('simulated', 'recipe', 0, " in said


def test_a_fault_that_its_workload_switches_off_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cases = (Case.of(all_workloads()["rings"], seed) for seed in range(50))
    calm = next(case for case in cases if case.faults.active and not case.run().faults.active)
    assert main(["--seed", str(calm.seed), "--workload", "rings", "--trace"]) == 0
    assert "\nfaults: none\n" in capsys.readouterr().out


def test_a_failure_is_shrunk_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with planted(LOSES_COUNT):
        assert main(["--seeds", "0:50", "--workload", "recipe"]) == 1
    said = capsys.readouterr().out
    assert "The counter of items says" in said
    loaded = "--load tests.system.workloads.items --workload recipe"
    assert f"smallest: python -m fdbqueue.testing.simulate {loaded} --seed" in said
    assert "--clients 1 --steps 1" in said
    assert "transactions matter" in said


def test_the_printed_command_repeats_the_failure(capsys: pytest.CaptureFixture[str]) -> None:
    workload = all_workloads()["recipe"]
    with planted(LOSES_COUNT):
        failing = next(case for seed in range(50) if (case := Case.of(workload, seed)).run().failed)
        smallest = shrunk(failing)
        arguments = smallest.command().split()[3:]
        assert main(arguments) == 1
    assert "The counter of items says" in capsys.readouterr().out


def test_check_raises_the_report_of_the_failure() -> None:
    with planted(LOSES_COUNT), pytest.raises(AssertionError, match="The counter of items says"):
        check(all_workloads()["recipe"], range(50))


@pytest.mark.parametrize("arguments", [["--workload", "none"], ["--seeds", "x"], ["--without", "gremlins"]])
def test_wrong_arguments_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err


def test_a_run_prints_no_logs_of_the_faults() -> None:
    program = ["-m", "tests.system", "--seeds", "0:3", "--workload", "outages"]
    ran = subprocess.run([sys.executable, *program], capture_output=True, text=True, check=True)

    assert ran.stdout.startswith("3 seeds, ")
    assert ran.stderr == ""


def test_importing_fdbqueue_does_not_import_greenlet() -> None:
    """The extra `testing` is optional, so the library itself must not need greenlet."""
    program = (
        "import fdbqueue, fdbqueue.embedded, sys; print({'greenlet', 'fdbqueue.testing'} & set(sys.modules))"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert said == "set()\n"
