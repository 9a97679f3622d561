"""Liveness: the processes that have no reason to be late.

In a calm run no fault delays a process. Then a heartbeat or a request that is overdue is a bug of its owner,
as long as that process goes on.
"""

from collections.abc import Callable


class Liveness:
    def __init__(
        self,
        is_calm: Callable[[], bool] = lambda: False,
        goes_on: Callable[[str], bool] = lambda _: True,
        gives_signs: Callable[[], bool] = lambda: False,
    ) -> None:
        """`goes_on`: true for a machine that has neither finished nor died. `gives_signs`: true if requests
        give signs of life, and a silent owner counts as dead before its deadline.
        """
        self.is_calm = is_calm
        self._goes_on = goes_on
        self.gives_signs = gives_signs

    def is_in_time(self, machine: str) -> bool:
        return self.is_calm() and self._goes_on(machine)
