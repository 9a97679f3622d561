"""The mutants of a room, in the order in which they are judged."""

import random
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path

from tests.mutants.mutant import Mutant, mutants_of, planted
from tests.simulation.planted import PLANTS

REPOSITORY = Path(__file__).parents[2]

_COMMIT = ("batch", "commit", "commitlog", "pool", "request", "steps", "system", "watches", "writes")
"""Modules of the engine on the path of a commit and of its watches."""
_JOURNAL = ("base", "durability", "journal", "recovery", "users")
"""Modules that keep commits over a power cut."""
_FOLDERS = (
    "dead",
    "elements",
    "fair",
    "fleet",
    "groups",
    "limiting",
    "parking",
    "partitions",
    "persistent",
    "schedules",
)

ROOMS: dict[str, tuple[str, ...]] = {
    "line": ("fdbqueue/core/line/*.py", "fdbqueue/core/calls/*.py"),
    "tasks": ("fdbqueue/tasks/*.py", "fdbqueue/tasks/disciplines/*.py", "fdbqueue/tasks/unique/*.py"),
    "recipe": ("fdbqueue/queues/recipe/*.py",),
    "sessions": ("fdbqueue/core/sessions/*.py",),
    "commit": tuple(f"fdbqueue/embedded/{name}.py" for name in _COMMIT),
    "journal": tuple(f"fdbqueue/embedded/{name}.py" for name in _JOURNAL),
    **{name: (f"fdbqueue/**/{name}/*.py",) for name in _FOLDERS},
}


def files_of(room: str) -> list[str]:
    """The modules of a room, as paths from the root of the repository."""
    paths = chain.from_iterable(REPOSITORY.glob(pattern) for pattern in ROOMS[room])
    return sorted(path.relative_to(REPOSITORY).as_posix() for path in paths)


def mutants_in(room: str, seed: int) -> list[Mutant]:
    """All mutants of a room, one of each operator after the other; planted bugs count as one operator.

    The seed decides the order within an operator. So any first part is a sample that leans towards rare
    operators, as those of conflicts.
    """
    by_operator: defaultdict[str, list[Mutant]] = defaultdict(list)
    by_operator["planted"] += _planted_in(room)
    for file in files_of(room):
        for mutant in mutants_of(file, (REPOSITORY / file).read_text()):
            by_operator[mutant.operator].append(mutant)
    for operator, found in by_operator.items():
        random.Random(f"{seed} {operator}").shuffle(found)
    rows = zip_longest(*(by_operator[operator] for operator in sorted(by_operator)))
    return [mutant for row in rows for mutant in row if mutant is not None]


def _planted_in(room: str) -> Sequence[Mutant]:
    files = {file: (REPOSITORY / file).read_text() for file in files_of(room)}
    homes = [(plant, f"{plant.function.__module__.replace('.', '/')}.py") for plant in PLANTS]
    return [
        planted(home, files[home], plant.function, plant.what, plant.old, plant.new)
        for plant, home in homes
        if home in files
    ]
