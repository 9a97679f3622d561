"""The workloads of fdbqueue itself. Each judges a part of the package; docs/tests.md tells the promises."""

from importlib import import_module
from pkgutil import iter_modules

from fdbqueue import testing
from fdbqueue.testing import Workload


def all_workloads() -> dict[str, Workload]:
    """Those of all files here, and others registered since, by name."""
    for module in iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return testing.all_workloads()
