"""Groups: those that buried members hold, as checks."""

from fdbqueue.diagnosis.check import Check, fine, warning
from fdbqueue.overview.figures import GroupsFigures
from fdbqueue.plurals import counted
from fdbqueue.verifying.cures import command

CHECK = "groups"


def check_groups(found: GroupsFigures) -> list[Check]:
    """One result; none if there is no group that has not ended."""
    if not found.first_held:
        least = "" if found.is_whole else "at least "
        count = f"{least}{counted(found.unfinished, 'unfinished group')}"
        return [fine(CHECK, count, unfinished=found.unfinished)] if found.unfinished else []
    first = found.first_held[0]
    are = "1 group is" if found.held == 1 else f"{found.held:,} groups are"
    text = f"{are} held by buried members, such as {first.id} by {first.buried:,} of them: it does not end"
    return [warning(CHECK, text, command("group", "show", first.id), held=found.held, group=first.id)]
