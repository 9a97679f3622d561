"""Looks of the workload `exact_mixed` at groups, after all sweeps."""

from functools import partial

from fdbqueue.core.database import run
from fdbqueue.core.seam import Transaction
from fdbqueue.tasks.groups.group import Group
from fdbqueue.tasks.groups.waiting import GroupProgress
from tests.system.workloads.exact_calls import require_equal
from tests.system.workloads.exact_mixed_deeds import Mixed


def look_at_groups(user: Mixed) -> None:
    """Compare the counts of the groups that have not ended.

    Raises: AssertionError.
    """
    model, db = user.model, user.caller.client.db
    for group in [group for group in model.groups.values() if group.ended is None][-3:]:
        found = run(db, partial(_progress, group.id))
        counts = (found.total, found.done, found.failed, found.left, found.buried, found.open)
        wanted = (
            group.total, group.done, group.failed, group.left, model.buried(group), group.is_open,
        )  # fmt: skip
        require_equal(f"the group {group.id}", counts, wanted)


def _progress(id_: str, tr: Transaction) -> GroupProgress:
    return Group(id_).progress(tr)
