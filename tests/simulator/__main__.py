"""`python -m tests.simulator`: run our workloads in FoundationDB's own simulator.

It builds the host, and runs seeds in parallel processes until all have run or the time is over. It prints
one line for each seed; after a failure also what was wrong, and the command that repeats the seed. The
number of a seed chooses one of the test files and one of the workloads.

The simulator is an fdbserver of release 7.4 or later. The client library has to be of the same build.
Exit status 0 if all is well, 1 if a seed failed, 2 for wrong arguments.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.simulator.build import built, compile_modules, missing, search_path
from tests.simulator.plants import VARIABLE, all_plants

FILES = Path(__file__).with_name("files")
WORKLOADS = (
    *("recipe", "waits", "tasks", "acks", "keyed", "fairness"),
    *("unique", "groups", "limited", "partitions", "elements", "awaited_tasks"),
    *("repeated", "proxies", "joined", "takeover", "schedules", "results", "item_partitions"),
    *("batches", "batched", "bounded", "cancels", "charged", "clearing", "closing", "combined"),
    *("composed", "crossed", "crowd", "agreed", "altered", "awaited_recipe", "awaited_waits"),
    *("redriven", "temporary", "pipeline", "handed", "hooked", "holding"),
)
LIMIT_S = 900
"""The longest of 544 seeds took 510 s, on a busy machine."""
_COUNTED = {
    "kills": 'Type="KillMachineProcess"',
    "reboots": 'Type="RebootingProcess"',
    "recoveries": 'Status="fully_recovered"',
    "clogs": 'Type="ClogInterface"',
    "rollbacks": 'Type="AttemptingToTriggerRollback"',
    "moves": 'Type="RelocateShard"',
}
_ERROR = 'Severity="40"'
_LOOK = re.compile(r"Unseed: (\d+)")
_SHOWN_MAX = 5


@dataclass(frozen=True)
class Case:
    """One run: a seed, with the file and the workload that it chooses."""

    seed: int
    file: str
    workload: str

    def command(self, options: argparse.Namespace) -> str:
        """The command line that repeats it."""
        words = f"--fdbserver {options.fdbserver} --client {options.client} --first {self.seed} --seeds 1"
        words += f" --files {self.file} --workloads {self.workload}"
        return f"python -m tests.simulator {words}{f' --plant {options.plant!r}' if options.plant else ''}"


@dataclass
class Outcome:
    case: Case
    seconds: float
    report: dict[str, Any]
    unseed: str
    counts: Counter[str]
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        told, faults = self.report, Counter(self.report.get("faults", {}))
        case, result = self.case, "FAILED" if self.wrong else "ok"
        made = faults["unknown_done"] + faults["unknown_not_done"]
        words = [
            f"{case.file} {case.workload} seed {case.seed}: {result}",
            f"{told.get('answered', 0)} of {told.get('operations', 0)} calls answered",
            f"{faults['error 1021']} unknown results ({made} made here)",
            f"{faults['die']} deaths, {faults['stall']} stalls",
            ", ".join(f"{number} {name}" for name, number in self.counts.items() if number),
            f"{told.get('virtual_s', 0):.0f} s in {self.seconds:.0f} s",
            f"unseed {self.unseed}, keys {told.get('hash', '')[:8]}",
        ]
        return ", ".join(filter(None, words))


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Neighbouring seeds have other files, and after each round of them other workloads."""
    for seed in range(options.first, options.first + options.seeds):
        file = options.files[seed % len(options.files)]
        yield Case(seed, file, options.workloads[seed // len(options.files) % len(options.workloads)])


def run(case: Case, options: argparse.Namespace, host: Path) -> Outcome:
    """Run a case, if asked twice. Its folder goes, unless it failed."""
    first = _run_once(case, options, host)
    if options.twice and not first.wrong:
        second = _run_once(case, options, host)
        told = [(one.unseed, one.report) for one in (first, second)]
        if told[0] != told[1] or second.wrong:
            first.wrong = [f"another run of the seed differs: {told[0]}, {told[1]}", *second.wrong]
    return first


def _run_once(case: Case, options: argparse.Namespace, host: Path) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"{case.file}-{case.workload}-{case.seed}-", dir=options.folder))
    text = (FILES / f"{case.file}.toml").read_text()
    (folder / "test.toml").write_text(text.replace("WORKLOAD", case.workload))
    # Beside the test file, which names no folder: the simulator sends the name to its testers, and a longer
    # message takes longer.
    library = Path(shutil.copy(host, folder))
    began = time.monotonic()
    status, told = _simulated(case, options, folder, "on" if "# buggify" in text else "off")
    outcome = _read(case, folder, told, time.monotonic() - began)
    library.unlink()
    if status and not outcome.wrong:
        outcome.wrong = [f"exit status {status}", *told.splitlines()[-_SHOWN_MAX:]]
    if outcome.wrong:
        outcome.wrong.append(f"its traces are in {folder}")
    else:
        shutil.rmtree(folder)
    return outcome


def _simulated(case: Case, options: argparse.Namespace, folder: Path, buggify: str) -> tuple[int, str]:
    """The exit status and the output of the simulator. Its addresses are the same in each run."""
    words = ["-r", "simulation", "-f", "test.toml", "-s", str(case.seed), "-b", buggify]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("FDB", "PYTHON"))},
        "FDBQUEUE_SIMULATOR_PATH": search_path(),
        "LD_LIBRARY_PATH": str(Path(options.client).parent),
        **({VARIABLE: options.plant} if options.plant else {}),
    }
    with (folder / "out.txt").open("w+") as out:
        try:
            ended = subprocess.run(
                [*_steady(), options.fdbserver, *words],
                cwd=folder,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            )
            status = ended.returncode
        except subprocess.TimeoutExpired:
            status = -1
        out.seek(0)
        shutil.rmtree(folder / "simfdb", ignore_errors=True)
        return status, out.read()


@cache
def _steady() -> list[str]:
    """The words that give a program the same addresses in each run; none where that is not allowed."""
    words = ["setarch", "-R"]
    is_allowed = shutil.which(words[0]) and not subprocess.run([*words, "true"], check=False).returncode
    return words if is_allowed else []


def _read(case: Case, folder: Path, told: str, seconds: float) -> Outcome:
    reports = [
        json.loads(line.partition(" ")[2]) for line in told.splitlines() if line.startswith("fdbqueue {")
    ]
    report = reports[-1] if reports else {}
    counts: Counter[str] = Counter()
    wrong: list[str] = list(report.get("violations", ()))
    for path in sorted(folder.glob("trace*.xml")):
        with path.open(errors="replace") as lines:
            for line in lines:
                counts.update(name for name, mark in _COUNTED.items() if mark in line)
                if _ERROR in line:
                    wrong.append(line.strip()[:300])
    found = _LOOK.search(told)
    if "\n1 tests passed; 0 tests failed." not in told:
        wrong.append("the simulator found that a test failed")
    if not reports:
        wrong.append("the workload gave no report")
    return Outcome(case, seconds, report, found[1] if found else "none", counts, wrong[:_SHOWN_MAX])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    options.client = options.client or beside(options.fdbserver)
    if options.plant and options.plant not in all_plants():
        parser.error(f"no planted bug is called {options.plant!r}")
    for path in (options.fdbserver, options.client):
        if not Path(path).is_file():
            parser.error(f"there is no file {path}")
    if lack := missing():
        parser.error(f"the host needs {lack}")
    compile_modules()
    until = time.monotonic() + options.minutes * 60
    with tempfile.TemporaryDirectory(prefix="fdbqueue-host-") as place:
        host, failed, totals = built(Path(place)), 0, Counter[str]()

        def one(case: Case) -> Outcome | None:
            return None if time.monotonic() > until else run(case, options, host)

        with ThreadPoolExecutor(options.jobs) as pool:
            runs = [pool.submit(one, case) for case in cases(options)]
            for outcome in filter(None, (ended.result() for ended in as_completed(runs))):
                print(outcome, flush=True)
                totals += outcome.counts + Counter({"seeds": 1, **outcome.report.get("faults", {})})
                if outcome.wrong:
                    failed += 1
                    print("\n".join(f"  {text}" for text in outcome.wrong))
                    print(f"  {outcome.case.command(options)}", flush=True)
    print(f"{failed} failed; {', '.join(f'{number} {name}' for name, number in totals.items())}")
    return int(failed > 0)


def beside(fdbserver: str) -> str:
    """The client library in the folder of the server, or in the `lib` beside that."""
    folder = Path(fdbserver).absolute().parent
    places = [folder / "libfdb_c.so", folder.parent / "lib" / "libfdb_c.so"]
    return str(next((place for place in places if place.is_file()), places[0]))


def _parser() -> argparse.ArgumentParser:
    def names(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser("python -m tests.simulator", description=__doc__)
    parser.add_argument("--fdbserver", required=True, help="a server of release 7.4 or later")
    parser.add_argument("--client", help="the libfdb_c.so of the same build; by default the one beside it")
    parser.add_argument("--seeds", type=int, default=100, help="the number of seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--minutes", type=float, default=10, help="no seed begins after this time")
    parser.add_argument(
        "--files", type=names, default=["mild", "cruel", "disks"], help="names of files/, with commas"
    )
    parser.add_argument("--workloads", type=names, default=list(WORKLOADS), help="names, with commas")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--twice", action="store_true", help="run each seed twice, and compare")
    parser.add_argument("--plant", help="the first line of a planted bug, which the runs have")
    parser.add_argument("--folder", help="where folders of runs are made; by default the system's")
    return parser


if __name__ == "__main__":
    sys.exit(main())
