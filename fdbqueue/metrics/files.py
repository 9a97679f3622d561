"""The metrics of processes that keep them in files: the mode of prometheus-client for several processes."""

from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector

from fdbqueue.logger import logger
from fdbqueue.trouble import Troubles

_log = logger("fdbqueue.metrics")


class FilesCollector:
    """The sums over all processes that have kept their metrics in one directory, dead ones too."""

    def __init__(self, directory: Path, troubles: Troubles) -> None:
        self._directory = directory
        self._troubles = troubles

    def describe(self) -> Iterable[Metric]:
        """Nothing: the files name the metrics."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The sums; nothing while a file cannot be read, as other figures of the page must still be told."""
        try:
            found: list[Metric] = list(MultiProcessCollector(None, str(self._directory)).collect())
        except Exception as error:
            self._troubles.met(_log, f"the metrics in {self._directory} could not be read", error)
            return ()
        return found
