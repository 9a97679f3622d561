"""Knobs of FoundationDB's client library that the programs of this package set for their own process.

A library must not set them: they are of the whole process, and hold for every database that it opens. A
program asks for them before it opens anything; `open` hands them to the client library before its network
starts. The variable FDB_NETWORK_OPTION_KNOB, which the client library reads by itself, goes before them.
"""

import os
from typing import Any

# When a watch fires, the client library asks for a read version. If that is older than the change, it asks
# again after this delay, by default 10 ms: most of the time from a put to a waiting take.
_PROGRAM_KNOBS = {"future_version_retry_delay": "0.001"}
_VARIABLE = "FDB_NETWORK_OPTION_KNOB"
_NETWORK_ALREADY_SET_UP = 2009

_asked = False


def for_this_program() -> None:
    """Set the knobs of this process when it opens its first cluster. For programs, before they open any."""
    global _asked
    _asked = True


def given_knobs() -> list[str]:
    """The knobs of this process, as name=value: those of the environment, then those that it asked for."""
    given = os.environ.get(_VARIABLE, "")
    asked = _PROGRAM_KNOBS.items() if _asked else ()
    return [*given.split(), *(f"{name}={value}" for name, value in asked if name not in given)]


def hand_to(binding: Any) -> None:
    """Set the knobs that the program asked for, unless the environment names them or the network runs."""
    given = os.environ.get(_VARIABLE, "")
    for name, value in _PROGRAM_KNOBS.items() if _asked else ():
        try:
            if name not in given:
                binding.options.set_knob(f"{name}={value}")
        except binding.FDBError as error:
            if error.code != _NETWORK_ALREADY_SET_UP:
                raise
