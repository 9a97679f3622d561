"""Open files: of this process, and of the workers on this host.

An embedded database, each connection and each watched socket is an open file. A process at its limit can
neither connect nor commit.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from fdbqueue import limits
from fdbqueue.diagnosis.check import Check, fine, warning

CHECK = "open files"
_LIMIT = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)


@dataclass(frozen=True)
class OpenFiles:
    process_id: int
    count: int
    limit: int


def see_open_files(process_ids: Iterable[int]) -> list[OpenFiles]:
    """The open files of the processes that live on this host and may be read."""
    return [seen for process_id in process_ids if (seen := _see(process_id)) is not None]


def check_open_files(seen: Iterable[OpenFiles]) -> list[Check]:
    """A warning for each process that has used most of its limit."""
    listed = list(seen)
    near = [one for one in listed if one.count > limits.OPEN_FILES_SHARE_MAX * one.limit]
    if near:
        return [_near(one) for one in near]
    if not listed:
        return []
    most = max(listed, key=lambda one: one.count / one.limit)
    text = f"{most.count} of {most.limit} in process {most.process_id}, of {len(listed)} looked at"
    return [fine(CHECK, text, process_id=most.process_id, count=most.count, limit=most.limit)]


def _near(one: OpenFiles) -> Check:
    text = f"process {one.process_id} has {one.count} open files, of at most {one.limit}"
    cure = "Raise its limit (`ulimit -n`, or LimitNOFILE= of its unit), then start it again."
    return warning(CHECK, text, cure, process_id=one.process_id, count=one.count, limit=one.limit)


def _see(process_id: int) -> OpenFiles | None:
    """None for a process that has ended, or that belongs to another user."""
    try:
        count = len(os.listdir(f"/proc/{process_id}/fd"))
        with open(f"/proc/{process_id}/limits", encoding="ascii") as file:
            found = _LIMIT.search(file.read())
    except OSError:
        return None
    if found is None or found[1] == "unlimited":
        return None
    return OpenFiles(process_id, count, int(found[1]))
