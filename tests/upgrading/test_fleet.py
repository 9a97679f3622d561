"""Data of e93aa1e are upgraded under a fleet of this release, while processes of both are killed."""

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database
from fdbqueue.errors import OlderSessions
from fdbqueue.registry.registry import Registry
from fdbqueue.upgrading.upgrade import Upgrade
from tests.conftest import DURABLE
from tests.spawned import crew
from tests.upgrading.fleet import acked, marks_of, root_of, upgrade_slowly, work_on_each_kind
from tests.upgrading.write_old import COUNT, KINDS
from tests.upgrading.written import Later, load

KILLS = 3


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_kills_of_an_upgrade_and_its_fleet_lose_no_task(url: str, db: Database, space: Subspace) -> None:
    load(db, root_of(space))
    registry, arguments = Registry(root_of(space)), (url, space.key().hex())
    queues, tasks = len(Upgrade(db, registry).plan()), COUNT * len(KINDS)
    with crew() as upgrades, crew() as workers:
        upgrades.spawn(upgrade_slowly, *arguments)
        workers.spawn(work_on_each_kind, *arguments)
        upgrades.kill_throughout(KILLS, lambda: 1 - len(Upgrade(db, registry).plan()) / queues)
        workers.kill_after(lambda: acked(db, space) > tasks / 2)
        assert upgrades.finish() + workers.finish() == [0, 0]
        assert upgrades.killed + workers.killed > 0
    assert Upgrade(db, registry).plan() == []
    marks = {row.value for row in db.get_range_startswith(marks_of(space).key())}
    assert (acked(db, space), marks) == (tasks, {b"\x01"}), "each task is acked once"
    with fdbqueue.open(url, runtime=Later()) as later:
        assert fdbqueue.verify(later, root=root_of(space)).sound


@pytest.mark.parametrize("engine", DURABLE, indirect=True)
def test_live_sessions_of_an_earlier_release_are_found(db: Database, space: Subspace) -> None:
    load(db, space)
    with pytest.raises(OlderSessions, match=r"'worker'.*Stop them") as raised:
        Upgrade(db, Registry(space)).require_no_older_sessions()
    assert len(raised.value.sessions) == 3
