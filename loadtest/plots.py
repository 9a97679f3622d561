"""The plots of a run, drawn in a process of its own: `python -m loadtest.plots DIR < SAMPLES`.

matplotlib starts processes, such as `fc-list` for its first cache of fonts. In a process with gevent's loop
that can block for ever, and drawing stops all greenlets for seconds. This process has no loop.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from gevent import subprocess

from loadtest.samples import Sample, conflicts_by_consumers, rates_of

DRAWN_S = 120.0
_PACKAGES = Path(__file__).parents[1]


class NotDrawn(Exception):
    """The plots could not be drawn; the message says why."""


def draw(samples: Sequence[Sample], folder: Path) -> list[Path]:
    """Write load.png and conflicts.png, and return their paths. Only the calling greenlet waits.

    Raises NotDrawn.
    """
    paths = [folder / "load.png", folder / "conflicts.png"]
    command = [sys.executable, "-m", "loadtest.plots", *(str(path.absolute()) for path in paths)]
    try:
        drawing = subprocess.run(
            command,
            input=msgspec.json.encode(samples),
            stderr=subprocess.PIPE,
            cwd=_PACKAGES,
            timeout=DRAWN_S,
        )
    except subprocess.TimeoutExpired:
        raise NotDrawn(f"still drawing after {DRAWN_S:.0f} s") from None
    if drawing.returncode:
        said = drawing.stderr.decode(errors="replace").strip().splitlines()
        raise NotDrawn(said[-1] if said else f"exit status {drawing.returncode}")
    return paths


def plot_load(samples: Sequence[Sample], path: Path) -> None:
    """Throughput, users and latencies over time."""
    from matplotlib import pyplot

    times = [sample.seconds for sample in samples]
    figure, (rates, latencies) = pyplot.subplots(2, 1, figsize=(10, 8), sharex=True, layout="constrained")
    rates.plot(times, rates_of(samples))
    rates.set(ylabel="operations per second", ylim=(0, None), title="Throughput")
    users = rates.twinx()
    users.step(times, [sample.users for sample in samples], where="post", color="grey", alpha=0.6)
    users.set(ylabel="users", ylim=(0, None))
    for name in ("p50_ms", "p95_ms", "p99_ms"):
        latencies.plot(times, [getattr(sample, name) for sample in samples], label=name.removesuffix("_ms"))
    latencies.set(xlabel="seconds", ylabel="latency of an operation, ms", yscale="symlog", ylim=(0, None))
    latencies.legend()
    figure.savefig(path, dpi=120)


def plot_conflicts(samples: Sequence[Sample], path: Path) -> None:
    """Conflicts per operation against the number of consumers."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    found = conflicts_by_consumers(samples)
    axes.plot([count for count, _ in found], [share for _, share in found], marker="o")
    axes.set(xlabel="consumers", ylabel="conflicts per operation", ylim=(0, None))
    figure.savefig(path, dpi=120)


def main(load_path: str, conflicts_path: str) -> None:
    """Draw the samples on standard input. Raises ModuleNotFoundError without matplotlib."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # blocked in the process of the run
    import matplotlib

    matplotlib.use("Agg")
    samples = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Sample])
    Path(load_path).parent.mkdir(parents=True, exist_ok=True)
    plot_load(samples, Path(load_path))
    plot_conflicts(samples, Path(conflicts_path))


if __name__ == "__main__":
    main(*sys.argv[1:])
