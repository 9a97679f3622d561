"""Homes: each partition belongs to one of the live sessions; most takes of a session begin at its own."""

from collections import Counter

import fdbqueue
from fdbqueue import Session
from fdbqueue.core import limits
from fdbqueue.core.line.wide import Homes
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from tests.tasks.support import StillClock

ALL = set(range(64))


def owned(homes: Homes, session: Session) -> set[int]:
    """The partitions at which more takes of the session begin than its visits."""
    visits = 2
    takes = len(ALL) * limits.TAKES_PER_VISIT * visits
    begins = Counter(homes.next(len(ALL), len(ALL), session.id) for _ in range(takes))
    return {number for number, count in begins.items() if count > visits}


def test_live_sessions_share_all_partitions() -> None:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        homes, first = Homes(db, RootKeys(DEFAULT_ROOT)), Session(db, ttr=1_000)
        assert owned(homes, first) == ALL

        second = Session(db, ttr=60)
        clock.advance(limits.HOMES_CHOSEN_EVERY_S)
        mine, other = owned(homes, first), owned(homes, second)
        assert (mine | other, mine & other) == (ALL, set())

        clock.advance(61)
        assert owned(homes, first) == ALL


def test_homes_are_those_of_the_present_number_of_partitions() -> None:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        homes, session = Homes(db, RootKeys(DEFAULT_ROOT)), Session(db, ttr=1_000)
        for count in (4, 2, 3):
            begins = {homes.next(count, count, session.id) for _ in range(4 * limits.TAKES_PER_VISIT)}
            assert begins == set(range(count))
