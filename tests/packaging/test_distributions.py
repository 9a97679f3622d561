"""The archives that `make dist` builds: their contents, and the quick start in an environment of each."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from fcntl import LOCK_EX, flock
from pathlib import Path

import pytest

from fdbqueue import __version__
from tests.matrix.pairs import PYTHONS, python_of
from tests.packaging.building import ROOT, build, copied, ran
from tests.packaging.environment import Environment
from tests.packaging.following import chapters, follow
from tests.page import page
from tests.pages.blocks import blocks_of
from tests.pages.running import Reader

WHEEL_BYTES_MAX = 1_231_000
CORE = {"foundationdb", "lmdb", "sortedcontainers", "msgspec"}
GENERATED = {"PKG-INFO", "setup.cfg"}
QUICK_START = chapters("docs/quickstart.md")
SHELL = "The same from a shell"
FOLLOWED = {
    "cli": ["README.md", "docs/gallery/batch.md", "docs/gallery/images.md", "docs/gallery/mailer.md"],
    "aio": ["docs/asyncio.md"],
    "cli,schedules": ["docs/schedules.md"],
    "cli,metrics": ["docs/metrics.md"],
    "cli,metrics,otel opentelemetry-sdk": ["docs/observing.md"],
    "testing": ["docs/testing.md"],
    "pytest": ["docs/pytest.md"],
    "cli,celery": ["docs/celery.md"],
    "dramatiq": ["docs/dramatiq.md"],
    "taskiq": ["docs/taskiq.md"],
    "django": ["docs/django.md"],
    "cli,dashboard": ["tests/packaging/programs.md"],
}
"""Extras, perhaps with another package, and the pages that run in an environment of these alone."""


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built once, even if several processes run these tests."""
    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent
    work = place / "distributions"
    work.mkdir(exist_ok=True)
    with open(work / "lock", "w") as lock:
        flock(lock, LOCK_EX)
        return work / "dist" if (work / "dist").exists() else build(work)


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        return Parser().parsestr(archive.read(f"fdbqueue-{__version__}.dist-info/METADATA").decode())


def requirements_of(wheel: Path) -> list[str]:
    return metadata_of(wheel).get_all("Requires-Dist", [])


def committed() -> set[str]:
    """Return the names of the checkout's files that exist."""
    if not (ROOT / ".git").exists():
        pytest.skip("not in a clone: git has no list of the files")
    names = ran("git", "ls-files", "-z", cwd=ROOT).split("\0")
    return {name for name in names if (ROOT / name).is_file()}


@pytest.mark.in_turn(4)
def test_the_source_distribution_is_the_checkout(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        files = {member.name.partition("/")[2] for member in archive if member.isfile()}
    packed = {name for name in files - GENERATED if not name.startswith("fdbqueue.egg-info/")}
    assert committed() - packed == set(), "MANIFEST.in leaves these out"
    assert {"LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "tests/conftest.py"} <= packed


def test_the_wheel_is_the_package_alone(wheel: Path) -> None:
    about = f"fdbqueue-{__version__}.dist-info"
    names = names_in(wheel)
    assert {name.partition("/")[0] for name in names} == {"fdbqueue", about}
    assert {name for name in committed() if name.startswith("fdbqueue/")} <= names
    assert {"fdbqueue/py.typed", f"{about}/licenses/LICENSE"} <= names
    assert wheel.stat().st_size < WHEEL_BYTES_MAX


def test_the_metadata_say_what_a_reader_needs(wheel: Path) -> None:
    metadata = metadata_of(wheel)
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["Requires-Python"] == ">=3.11"
    needed = [line for line in requirements_of(wheel) if "extra ==" not in line]
    assert {re.split(r"[^\w-]", line)[0] for line in needed} == CORE


def test_every_extra_has_a_line_in_the_installation_page(wheel: Path) -> None:
    extras = metadata_of(wheel).get_all("Provides-Extra", [])
    assert [extra for extra in extras if f"\n| `{extra}` |" not in page("docs/install.md")] == []


def test_twine_finds_no_fault(wheel: Path, sdist: Path) -> None:
    ran(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist, cwd=wheel.parent)


@pytest.mark.in_turn(4)
def test_a_wheel_without_extras_runs_the_quick_start(wheel: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    environment.install(wheel)
    environment.link(requirements_of(wheel))
    before_the_shell = [text for title, text in QUICK_START.items() if title != SHELL]
    for chapter in before_the_shell:
        follow(chapter, environment, tmp_path)
    refused = subprocess.run(
        [environment.bin / "fdbqueue"],
        capture_output=True,
        text=True,
        env=environment.variables(),
        check=False,
    )
    assert "pip install 'fdbqueue[cli]'" in refused.stderr


@pytest.mark.in_turn(4)
def test_a_source_distribution_runs_the_quick_start(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """With the extra `cli`, to the end of the page."""
    environment = Environment(tmp_path / "venv")
    environment.link(["setuptools"])
    environment.install(sdist)
    environment.link(requirements_of(wheel), extra="cli")
    for chapter in QUICK_START.values():
        follow(chapter, environment, tmp_path)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skip a test if pip reaches no package registry."""
    download = [sys.executable, "-m", "pip", "download", "--retries=0", "--no-deps", "msgspec"]
    if subprocess.run(download, cwd=tmp_path_factory.mktemp("download"), check=False).returncode:
        pytest.skip("pip reaches no package registry")


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
@pytest.mark.parametrize("needs", FOLLOWED)
@pytest.mark.parametrize("version", PYTHONS)
@pytest.mark.timeout(900)
def test_a_wheel_with_the_extras_of_a_page_runs_it(
    version: str, needs: str, wheel: Path, tmp_path: Path
) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version}")
    environment = Environment(tmp_path / "venv", python=python)
    extras, *others = needs.split()
    environment.install_with(extras, wheel, *others)
    for name in FOLLOWED[needs]:
        place = tmp_path / Path(name).stem
        place.mkdir()
        Reader(place, tmp_path / "compiled", environment.variables()).follow(blocks_of(name, page(name)))


@pytest.mark.slow
@pytest.mark.usefixtures("registry")
def test_a_clone_installs_with_the_newest_dependencies(tmp_path: Path) -> None:
    """As on the page: pip takes them from the package registry."""
    environment = Environment(tmp_path / "venv", with_pip=True)
    pip = environment.bin / "pip"
    ran(pip, "install", f"{copied(tmp_path / 'clone')}[cli]", cwd=tmp_path)
    for chapter in QUICK_START.values():
        follow(chapter, environment, tmp_path)
