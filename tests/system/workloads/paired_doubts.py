"""Calls with commits in doubt: one after another has an unknown result, and is done at once, late or never.

From the same rows, each call happens without any of that, too, with the same answer and the same store. So an
effect that is lost, happens twice or is told wrong at a second attempt is found for sure.
"""

from collections.abc import Sequence
from dataclasses import replace

from tests.system.workloads.paired_process import Process
from tests.system.workloads.paired_store import Trouble, When
from tests.system.workloads.paired_world import NO_CALL, Call, Look, Outcome, unlikeness

WAYS: Sequence[Sequence[Trouble]] = (
    (Trouble.DONE,),
    (Trouble.DONE,),
    (Trouble.CHANGED,),
    (Trouble.LATE,),
    (Trouble.LATE,),
    (Trouble.LOST,),
    (Trouble.CONFLICT, Trouble.DONE),
    (Trouble.LOST, Trouble.DONE),
    (Trouble.LOST, Trouble.CONFLICT),
)
COMMITS_MAX = 4


class Doubts(Process):
    def step(self) -> None:
        self._move(0.4)
        self._world.refresh()
        self._before = self._twins.rows()
        call = self._drawn_alone()
        found, wanted = self._alone(call, 0, ()), None
        for clean in range(min(COMMITS_MAX, len(self._twins.trap.commits_made))):
            wanted = wanted or self._look(found.answers)
            self._twins.set_back(self._before)
            way = self._random.choice(WAYS)
            found = self._alone(call, clean, way)
            self._require_the_same(call, clean, way, found, wanted)
        self._world.learn(found.answers)

    def _drawn_alone(self) -> Call:
        """A call that is given a database: its effect happens once."""
        while True:
            self._world.forget_focus()
            call = self._drawn()
            if call.name != "both":
                return replace(call, within=False)

    def _alone(self, call: Call, clean: int, way: Sequence[Trouble]) -> Outcome:
        """Make the call in a process that remembers nothing. `clean`: the commits that end well first."""
        twins = self._twins
        twins.restart()
        self._open()
        twins.trap.set(When.AFTER, twins.trap.forget)
        twins.trap.doubt(clean, way)
        twins.runtime.draw_from(f"{self._seed} one")
        answer = call.answer(self._handles[0], twins.first)
        twins.trap.doubt(0, ())
        return Outcome((answer, None), twins.rows())

    def _require_the_same(
        self, call: Call, clean: int, way: Sequence[Trouble], found: Outcome, wanted: Look
    ) -> None:
        """Raises: AssertionError, which ends the run as a violation."""
        told = f"{self._world}: {call}, with {' and '.join(one.name for one in way)} after {clean} commits"
        flaws = self._world.flaws(self._twins.own)
        assert not flaws, f"{told}: {flaws}"
        if self._world.may_vary(call):
            return
        difference = unlikeness(self._look(found.answers), wanted, call, NO_CALL)
        assert difference is None, f"{told}: {difference} without"
