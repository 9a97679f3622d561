"""The pages of the metrics server: from a path to an answer, without a socket."""

from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from fdbqueue import limits
from fdbqueue.database import Database, run
from fdbqueue.logger import logger
from fdbqueue.metrics.collector import failures
from fdbqueue.trouble import text_of
from fdbqueue.visible import told

_log = logger("fdbqueue.metrics")
_OK, _NOT_FOUND, _ERROR, _UNAVAILABLE = 200, 404, 500, 503
_TEXT = "text/plain; charset=utf-8"
_INDEX = """fdbqueue metrics

/metrics  figures of the queues, for Prometheus
/healthz  200 while this process serves
/readyz   200 while the database answers, else 503
"""


class Answer(NamedTuple):
    status: int
    body: bytes
    type: str = _TEXT


class Pages:
    """The pages of one database. Threads share it; one scrape runs at a time, and the others wait."""

    def __init__(self, database: Database, registry: CollectorRegistry) -> None:
        self._database = database
        self._registry = registry
        self._scraping = database.runtime.lock()
        self._pages = {
            "/": lambda: _said(_OK, _INDEX),
            "/metrics": self._metrics,
            "/healthz": lambda: _said(_OK, "ok"),
            "/readyz": self._ready,
        }

    def get(self, path: str) -> Answer:
        """The answer for a path, without its query. An error becomes a sentence, and a line in the log."""
        page = self._pages.get(path)
        if page is None:
            return _said(_NOT_FOUND, "there is no such page; / lists the pages")
        try:
            return page()
        except Exception as error:
            self._database.troubles.met(_log, f"the page {path} has failed", error)
            return _said(_ERROR, "this page has failed; the log of fdbqueue metrics has the reason")

    def _metrics(self) -> Answer:
        if not self._scraping.acquire(timeout=limits.SCRAPE_WAIT_S):
            return _said(_UNAVAILABLE, "other scrapes are under way; try again")
        try:
            return Answer(_OK, generate_latest(self._registry), CONTENT_TYPE_LATEST)
        finally:
            self._scraping.release()

    def _ready(self) -> Answer:
        timeout_s = limits.READY_TIMEOUT_S
        try:
            run(self._database, lambda tr: tr.get_read_version().wait(), timeout_s=timeout_s)
        except failures() as error:
            return _said(_UNAVAILABLE, f"the database does not answer: {told(text_of(error))}")
        return _said(_OK, "ok")


def _said(status: int, text: str) -> Answer:
    return Answer(status, f"{text.rstrip()}\n".encode())
