"""Around: the functions that a worker calls once, before its first take and after its last task.

They make and close what the handlers of a process share, such as a client or a pool, and keep it themselves:
their results are ignored. `setup` runs in the thread that feeds, or on the loop. One that fails is an outage:
it is called again after growing pauses, and no task has failed. `teardown` runs if `setup` has returned.
"""

import inspect
from collections.abc import Callable
from typing import Any

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_function, checked_text, deferred_body, is_of_generator
from fdbqueue.core.database import Database
from fdbqueue.core.errors import InvalidArgument, heals
from fdbqueue.core.logger import logger
from fdbqueue.core.runtime import Event
from fdbqueue.core.visible import SURVIVED, shortened, text_of, visible
from fdbqueue.fleet.feed import Outage

_log = logger("fdbqueue.worker")

Once = Callable[[], object]


def checked_once(name: str, function: Any, on_loop: bool) -> Once | None:
    """Raises: InvalidArgument; DeferredBody for a generator function, and for a coroutine function unless
    the worker has a loop.
    """
    if function is None:
        return None
    kind = deferred_body(function)
    if not on_loop or kind is None or is_of_generator(kind):
        checked_function(name, function, "a function without arguments, or None")
    try:
        inspect.signature(function).bind()
    except TypeError:
        wanted = "a function that can be called without arguments"
        raise InvalidArgument(name=name, wanted=wanted, got=function) from None
    except ValueError:  # of a function in C, which does not tell its arguments
        pass
    once: Once = function
    return once


def checked_target(name: str, target: Any) -> str | None:
    """The "module:function" that each process of a fleet imports. Raises: InvalidArgument."""
    if target is None:
        return None
    module, _, function = checked_text(name, target, limits.URL_BYTES_MAX).partition(":")
    if not (module and function):
        raise InvalidArgument(name=name, wanted='"module:function"', got=target)
    return f"{module}:{function}"


class Around:
    """Belongs to one worker, and its one thread that feeds."""

    def __init__(
        self,
        database: Database,
        setup: Once | None,
        teardown: Once | None,
        call: Callable[[str, Once], object],
    ) -> None:
        """`call(name, function)` calls a function, in the way of the worker."""
        self._database = database
        self._setup, self._teardown = setup, teardown
        self._call = call
        self._is_set_up = False
        self.trouble = ""
        """The reason why the worker takes nothing."""

    def begin(self, stopped: Event, require_open: Callable[[], None]) -> None:
        """Call `setup` until it has returned, or until `stopped`. Raises: an error that does not heal."""
        outage = Outage(self._database.runtime)
        while not (stopped.is_set() or self._is_set_up):
            require_open()
            try:
                if self._setup is not None:
                    self._call("setup", self._setup)
            except SURVIVED as error:
                if not heals(error):
                    raise
                self.trouble = visible(shortened(f"setup: {type(error).__name__}: {text_of(error)}"))
                title = "setup has failed, and is called again; the worker takes nothing meanwhile"
                self._database.troubles.met(_log, title, error)
                stopped.wait(outage.met())
            else:
                self._is_set_up, self.trouble = True, ""

    def end(self) -> None:
        """Call `teardown`, if `setup` has returned. Never fails."""
        if self._teardown is None or not self._is_set_up:
            return
        try:
            self._call("teardown", self._teardown)
        except SURVIVED as error:
            self._database.troubles.met(_log, "teardown has failed; the worker ends all the same", error)
