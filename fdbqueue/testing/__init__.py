"""Deterministic simulation: find the race before the user does (docs/testing.md).

Needs the extra `testing`: `pip install fdbqueue[testing]`.
"""

from typing import TYPE_CHECKING

from fdbqueue.core import lazy
from fdbqueue.core.lazy import lazily

if TYPE_CHECKING:
    from fdbqueue.testing.cases import Case as Case
    from fdbqueue.testing.cases import Size as Size
    from fdbqueue.testing.cases import Workload as Workload
    from fdbqueue.testing.cases import all_workloads as all_workloads
    from fdbqueue.testing.cases import check as check
    from fdbqueue.testing.cases import workload as workload
    from fdbqueue.testing.checkers import bounded_transactions as bounded_transactions
    from fdbqueue.testing.checkers import exact_statistics as exact_statistics
    from fdbqueue.testing.checkers import never_nothing as never_nothing
    from fdbqueue.testing.checkers import no_key_left_behind as no_key_left_behind
    from fdbqueue.testing.checkers import no_watch_left_behind as no_watch_left_behind
    from fdbqueue.testing.checkers import order as order
    from fdbqueue.testing.checkers import prompt as prompt
    from fdbqueue.testing.checkers import total_queue as total_queue
    from fdbqueue.testing.coroutines import LoopClient as LoopClient
    from fdbqueue.testing.engine import Faults as Faults
    from fdbqueue.testing.scheduler import SimulatedRuntime as SimulatedRuntime
    from fdbqueue.testing.simulation import Checker as Checker
    from fdbqueue.testing.simulation import Client as Client
    from fdbqueue.testing.simulation import Result as Result
    from fdbqueue.testing.simulation import Simulation as Simulation
    from fdbqueue.testing.trace import Operation as Operation
    from fdbqueue.testing.trace import Trace as Trace

_HOMES = {
    "cases": "Case Size Workload all_workloads check workload",
    "checkers": "bounded_transactions exact_statistics never_nothing no_key_left_behind "
    "no_watch_left_behind order prompt total_queue",
    "coroutines": "LoopClient",
    "engine": "Faults",
    "scheduler": "SimulatedRuntime",
    "simulation": "Checker Client Result Simulation",
    "trace": "Operation Trace",
}
if not TYPE_CHECKING:
    _import, __dir__ = lazily(__name__, _HOMES)

    def __getattr__(name):
        with lazy.needs("testing", "greenlet"):
            return _import(name)
