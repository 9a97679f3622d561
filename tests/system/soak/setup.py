"""The options that all processes of one soak share, and the keys that it uses."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from fdb.subspace_impl import Subspace

SETUP = "setup.json"


@dataclass(frozen=True)
class Setup:
    """The options of a soak. All of its keys lie under `space`, so it needs no database of its own."""

    url: str
    subjects: tuple[str, ...]
    root: str = "soak"
    ttr_s: float = 2.0
    """Length of leases, and the age at which the lock of an element is broken."""
    session_ttr_s: float = 10.0
    wait_s: float = 0.2
    """The longest wait of a take; 0 lets no process stand in a line."""
    batch_max: int = 50

    @property
    def space(self) -> Subspace:
        return Subspace((self.root,))

    @property
    def queues(self) -> Subspace:
        """The root of the named queues, schedules and groups."""
        return self.space["root"]

    def effects(self, subject: str) -> Subspace:
        """Counts the effects of each value of a subject."""
        return self.space["effects"][subject]

    def write(self, directory: Path) -> None:
        (directory / SETUP).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, directory: Path) -> Self:
        found: dict[str, Any] = json.loads((directory / SETUP).read_text())
        return cls(**{**found, "subjects": tuple(found["subjects"])})
