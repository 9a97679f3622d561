"""Joining: puts of members of groups, and of tasks that wait for the end of another task.

A task that is put `after` another waits for a closed group of one member, which is that other task.
"""

from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from fdbqueue.core import limits
from fdbqueue.core.database import conflict_in
from fdbqueue.core.errors import GroupClosed, GroupNotFound, InvalidArgument
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from fdbqueue.tasks.capacity import NoRoom
from fdbqueue.tasks.change import Change
from fdbqueue.tasks.kinds import Draft
from fdbqueue.tasks.members import epoch_of, groups_of, with_groups
from fdbqueue.tasks.parts import Parts
from fdbqueue.tasks.records.groups import GroupRow, Then, readable_row, row_to_bytes
from fdbqueue.tasks.records.keys import Extra, Member, id_bytes, id_text
from fdbqueue.tasks.sweep import as_of

Put = Callable[[Sequence[Draft]], list[Task] | NoRoom]


def joined(parts: Parts, tr: Transaction, drafts: Sequence[Draft], put: Put) -> list[Task] | NoRoom:
    """Put tasks that are members of groups, or wait for one.

    Reads: the groups, the epoch of the queue, and the task of `after`, serialisably.
    Writes: as `put`; of `after`, that task and a group.
    Conflicts: the close and the cancel of a group, a truncate; of `after`, a change of that task.
    Raises: GroupNotFound, GroupClosed, InvalidArgument.
    Round trips: 1 more than `put`; with `after`, 2 more.
    """
    stored = tr.get(parts.shape.shared.epoch)
    rows = _open_groups(parts, tr, drafts)
    epoch = epoch_of(stored.value)
    ready = [_enrolled(draft, rows, epoch) for draft in drafts]
    first = ready[0]
    if not first.after:
        return put(ready)
    assert first.extra is not None  # it waits
    group = first.extra.waits
    enrol = partial(_enrol, id_=first.after, member=Member(group, epoch))
    verb = partial(
        _join,
        id_=first.after,
        put=partial(put, ready),
        enrol=enrol,
        enrol_elsewhere=partial(parts.within, tr, enrol, first.after),
    )
    tasks = parts.within(tr, verb, first.after)
    if tasks is None:  # it has ended
        return put([replace(first, extra=replace(first.extra, waits=b""))])
    if not isinstance(tasks, NoRoom):
        _store(parts, tr, group, tasks[0], first.after)
    return tasks


def _open_groups(parts: Parts, tr: Transaction, drafts: Sequence[Draft]) -> dict[bytes, GroupRow]:
    """The groups that new members of `drafts` join. Raises: GroupNotFound, GroupClosed.

    Members that arrive from another queue stay in cancelled groups. Their sweep begins again: it may have
    passed this queue.
    """
    root = parts.shape.root
    arrived = {member.group: None for draft in drafts if draft.arrives for member in _members(draft)}
    for group, marker in [(group, tr.get(root.group_cancelled(group))) for group in arrived]:
        if marker.present():
            tr.set(root.cancelling(group), b"")
    wanted = {member.group: None for draft in drafts if not draft.arrives for member in _members(draft)}
    asked = {group: (tr.get(root.group(group)), tr.get(root.group_cancelled(group))) for group in wanted}
    found: dict[bytes, GroupRow] = {}
    for group, (stored, cancelled) in asked.items():
        row = readable_row(stored.value)
        if row is None:
            raise GroupNotFound(id=group.hex())
        if not row.is_open or cancelled.present():
            raise GroupClosed(id=group.hex(), how="cancelled" if cancelled.present() else "closed")
        found[group] = row
    return found


def _enrolled(draft: Draft, rows: dict[bytes, GroupRow], epoch: int) -> Draft:
    """The draft, with the facts that its record tells of its groups."""
    if not _members(draft):
        return draft
    members = tuple(
        replace(member, epoch=epoch)
        if draft.arrives
        else Member(member.group, epoch, rows[member.group].holds)
        for member in _members(draft)
    )
    return replace(draft, extra=replace(draft.extra or Extra(), groups=members))


def _members(draft: Draft) -> tuple[Member, ...]:
    return () if draft.extra is None else draft.extra.groups


def _join(
    change: Change,
    id_: bytes,
    put: Callable[[], list[Task] | NoRoom],
    enrol: Callable[[Change], bool],
    enrol_elsewhere: Callable[[], bool],
) -> list[Task] | NoRoom | None:
    """Put the tasks that wait for a stored task, and make that one a member of one more group. None if it has
    ended.

    The put comes first: without room for it, nothing is written. To make room, it may sweep the stored task,
    which then joins the present partition of its task key.
    """
    [record] = change.read([id_])
    change.require_sound(id_)
    if record is None or as_of(record, change.now_us) is None:
        return None
    if len(groups_of(record)) >= limits.GROUPS_OF_TASK_MAX:
        wanted = f"a task with fewer than {limits.GROUPS_OF_TASK_MAX} groups and tasks that wait for it"
        raise InvalidArgument(name="after", wanted=wanted, got=id_text(id_))
    tasks = put()
    if not isinstance(tasks, NoRoom) and not enrol(change) and not enrol_elsewhere():
        raise conflict_in(change.tr)
    return tasks


def _enrol(change: Change, id_: bytes, member: Member) -> bool:
    [record] = change.read([id_])
    if record is not None:
        change.move([record], [with_groups(record, (*groups_of(record), member))])
    return record is not None


def _store(parts: Parts, tr: Transaction, group: bytes, task: Task, parent: bytes) -> None:
    shape = parts.shape
    then = Then(shape.definition.id, shape.name, id_bytes(task.id))
    row = GroupRow(parts.now_us(), is_open=False, then=then, parent=parent)
    tr.set(shape.root.group(group), row_to_bytes(row))
