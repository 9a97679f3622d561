"""Simulated processes: the embedded engine itself under the scheduler of a simulation (docs/testing.md)."""

from tests.system.processes.directory import PowerCut as PowerCut
from tests.system.processes.processes import Processes as Processes
from tests.system.processes.processes import processes_of as processes_of
