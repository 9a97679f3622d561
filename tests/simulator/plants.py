"""Planted bugs in the simulator: those of our own simulation, and those that only the simulator can find.

The second ones stand in `planted.txt` here, in the same form.
"""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from tests.simulation.planted import PLANTS, Plant, listed, planted

VARIABLE = "FDBQUEUE_SIMULATOR_PLANT"
_OWN = Path(__file__).with_name("planted.txt")
_sown = ExitStack()


def all_plants() -> Mapping[str, Plant]:
    own = listed(_OWN) if _OWN.exists() else ()
    return {plant.what: plant for plant in (*PLANTS, *own)}


def sow() -> None:
    """Plant the bug that the environment of this process names, for good."""
    if what := os.environ.get(VARIABLE):
        _sown.enter_context(planted(all_plants()[what]))
