"""Examining: the checks of one database, one after the other, with a pause between two looks."""

from collections.abc import Callable, Iterator
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import is_number
from fdbqueue.core.database import Database, as_database, run
from fdbqueue.core.errors import DatabaseClosed, InvalidArgument
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.seam import AnyDatabase
from fdbqueue.core.visible import text_of
from fdbqueue.embedded.transaction import Database as EmbeddedDatabase
from fdbqueue.operate.diagnosis import clocks, cluster, directory, process, queues, schedules
from fdbqueue.operate.diagnosis import limits as limits_of_tasks
from fdbqueue.operate.diagnosis.check import Check, Diagnosis, failure
from fdbqueue.operate.diagnosis.clocks import Look
from fdbqueue.operate.overview.figures import Figures
from fdbqueue.operate.overview.overview import Overview

_NAME_ANOTHER = "Follow the message, or name another database with --url."
Run = Callable[[], list[Check]]


def diagnose(db: AnyDatabase, *, watch_s: float = 3.0, root: Any = DEFAULT_ROOT) -> Diagnosis:
    """Check a database, the processes that use it, and its queues. A check that cannot be made is a failure.

    It looks twice, `watch_s` seconds apart, an hour at most. Clocks are compared of sessions that beat in
    between: a session beats three times in its ttr.
    Reads: by snapshot; figures of all queues, heartbeats, the cluster's status.
    Writes: nothing that stays; a few commits clear keys that do not exist.
    Conflicts: none.
    Raises: InvalidArgument, NotADatabase, DatabaseClosed.
    """
    if not is_number(watch_s) or not 0 <= watch_s <= limits.DOCTOR_WATCH_S_MAX:
        wanted = f"0 to {limits.DOCTOR_WATCH_S_MAX:g} seconds"
        raise InvalidArgument(name="watch_s", wanted=wanted, got=watch_s)
    examination = Examination(as_database(db), RootKeys(root), Overview(root=root))
    return Diagnosis(tuple(examination.checks(watch_s)))


def diagnosis_without(url: str, error: str) -> Diagnosis:
    """The diagnosis of a database that cannot be opened, or does not answer."""
    is_cluster = url.startswith("fdb:")
    cure = "Check the cluster file, and the servers: `fdbcli --exec status`." if is_cluster else _NAME_ANOTHER
    own = process.see_open_files([RealRuntime().process_id()])
    told = failure("connection", error, cure, url=url)
    return Diagnosis((told, *process.check_versions(), *process.check_open_files(own)))


class Examination:
    def __init__(self, database: Database, keys: RootKeys, overview: Overview) -> None:
        self._database = database
        self._keys = keys
        self._overview = overview
        self._last: Figures | None = None
        """The figures of the second look."""

    def checks(self, watch_s: float) -> Iterator[Check]:
        yield from _told(process.VERSIONS, process.check_versions)
        yield from self._of_engine()
        yield from _told(
            process.LATENCY, lambda: process.check_latency(process.see_latency(self._database, self._keys))
        )
        yield from _told(queues.CHECK, lambda: self._watched(watch_s))
        yield from _told(limits_of_tasks.CHECK, self._of_limits)
        yield from _told(schedules.CHECK, self._of_schedules)
        yield from _told(
            queues.GROUPS, lambda: [] if self._last is None else queues.check_groups(self._last.groups)
        )

    def _of_engine(self) -> Iterator[Check]:
        engine = self._database.engine
        if isinstance(engine, EmbeddedDatabase):
            yield from _told(
                directory.CHECK, lambda: directory.check_directory(directory.see_directory(engine.lmdb_store))
            )
        else:
            yield from _told(cluster.CHECK, self._of_cluster)

    def _of_cluster(self) -> list[Check]:
        status = cluster.see_status(self._database)
        return [
            *cluster.check_cluster(status),
            *cluster.check_versions(status),
            *cluster.check_knobs(status),
            *cluster.check_clock(status, self._database.runtime.now()),
        ]

    def _watched(self, watch_s: float) -> list[Check]:
        beats, figures = self._look(), self._figures()
        self._database.runtime.sleep(watch_s)
        later, figures_later = self._look(), self._figures()
        self._last = figures_later
        return [
            *clocks.check_clocks(beats, later),
            *clocks.check_sessions(later),
            *process.check_open_files(process.see_open_files(self._processes_here(later))),
            *queues.check_queues(figures, figures_later),
        ]

    def _of_limits(self) -> list[Check]:
        figures = self._last
        if figures is None:  # the check of queues tells the reason
            return []
        holders = limits_of_tasks.see_holders(self._database, self._keys, figures)
        return limits_of_tasks.check_limits(figures, holders)

    def _of_schedules(self) -> list[Check]:
        found, last = schedules.see_schedules(self._database, self._keys), self._last
        are_all = last is not None and len(last.queues) < limits.QUEUES_LISTED_MAX
        there = set(last.by_name) if last is not None and are_all else None
        return schedules.check_schedules(found, self._database.runtime.now(), there)

    def _look(self) -> Look:
        return clocks.look_at_beats(self._database, self._keys)

    def _figures(self) -> Figures:
        return run(self._database, self._overview.figures, timeout_s=limits.LOOK_TIMEOUT_S)

    def _processes_here(self, look: Look) -> list[int]:
        """This process, and those with sessions on this host."""
        runtime = self._database.runtime
        host, own = runtime.host_name(), runtime.process_id()
        here = {id_ for beat in look.beats.values() for place, id_ in beat.process_ids if place == host}
        return sorted({own, *here})


def _told(check: str, run: Run) -> list[Check]:
    try:
        return run()
    except DatabaseClosed:
        raise
    except Exception as error:
        text = f"the check of {check} failed: {type(error).__name__}: {text_of(error)}"
        return [failure(check, text, "Mend the cause that is told, then run it again.")]
