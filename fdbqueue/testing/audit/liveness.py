"""Liveness: the processes that have no reason to be late.

In a calm run no fault delays a process. Then a heartbeat or a request that is overdue is a bug of its owner,
as long as that process goes on.
"""

from collections.abc import Callable


class Liveness:
    def __init__(self) -> None:
        self.is_calm = False
        self._goes_on: Callable[[str], bool] = lambda _: False

    def calm(self, goes_on: Callable[[str], bool]) -> None:
        """The run is calm. `goes_on`: true for a machine that has neither finished nor died."""
        self.is_calm, self._goes_on = True, goes_on

    def is_in_time(self, machine: str) -> bool:
        return self.is_calm and self._goes_on(machine)
