"""Versions of this program, its interpreter and its packages."""

import platform
from importlib.metadata import PackageNotFoundError, version

from fdbqueue.diagnosis.check import Check, fine
from fdbqueue.version import __version__

CHECK = "versions"
_PACKAGES = ("foundationdb", "lmdb", "msgspec", "click")


def check_versions() -> list[Check]:
    """The versions that a report of a defect needs."""
    packages = {name: found for name in _PACKAGES if (found := _version_of(name)) is not None}
    told = {"fdbqueue": __version__, "Python": platform.python_version(), **packages}
    return [fine(CHECK, ", ".join(f"{name} {number}" for name, number in told.items()), **told)]


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:  # a distribution without metadata, such as a zipped program
        return None
