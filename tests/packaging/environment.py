"""A new environment that holds one distribution and the dependencies of its metadata, and nothing else."""

import os
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

from tests.packaging.building import ran


class Environment:
    """Dependencies are links to the installed ones, so that most tests need no package registry."""

    def __init__(self, place: Path, *, with_pip: bool = False, python: str = sys.executable) -> None:
        """`python`: that of the environment. `link` needs the one that runs the tests."""
        ran(python, "-m", "venv", *([] if with_pip else ["--without-pip"]), place, cwd=place.parent)
        self.bin = place / "bin"
        self._pip = (sys.executable, "-m", "pip", "--python", self.bin / "python", "install")
        (self._packages,) = place.glob("lib/python3*/site-packages")

    def install(self, archive: Path) -> None:
        """Install a wheel or a source distribution by pip, without its dependencies."""
        options = (
            "--quiet",
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "--no-compile",
            "--disable-pip-version-check",
        )
        # PYTHONPATH may lead to a tree with metadata, which pip takes for an installed fdbqueue.
        ran(*self._pip, *options, archive, cwd=archive.parent, env=self.variables())

    def install_with(self, extras: str, wheel: Path, *others: str) -> None:
        """Install a wheel, what it needs for `extras`, and other packages, from the package registry."""
        ran(*self._pip, "--quiet", f"{wheel}[{extras}]", *others, cwd=wheel.parent)

    def link(self, requirements: Iterable[str], extra: str = "") -> None:
        """Link the installed distributions that `requirements` name, and those which these need."""
        for needed in _closure(requirements, extra):
            for name in _parts(needed):
                link = self._packages / name
                if not link.exists():
                    link.symlink_to(Path(str(needed.locate_file(name))))

    def variables(self, **more: str) -> dict[str, str]:
        """Return the variables of a shell in which the environment is active."""
        left_out = ("PYTHON", "FDB", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
        return kept | {"PATH": f"{self.bin}:{os.environ['PATH']}"} | more


def _closure(requirements: Iterable[str], extra: str = "") -> Iterator[Distribution]:
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            found = distribution(requirement.name)
            assert requirement.specifier.contains(found.version, prereleases=True), (
                requirement,
                found.version,
            )
            yield found
            yield from _closure(found.requires or [])


def _parts(installed: Distribution) -> set[str]:
    """Return the names in site-packages that belong to a distribution; its programs lie elsewhere."""
    return {file.parts[0] for file in installed.files or []} - {"..", "__pycache__"}
