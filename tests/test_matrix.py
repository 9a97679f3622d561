"""The short version of `make matrix`: the installed binding, embedded, on the other Pythons found here."""

import sys
import tomllib
from pathlib import Path
from typing import Any

import fdb
import pytest

from tests.matrix.pairs import BINDINGS, PACKAGES, PYTHONS, TREE, NoPackages, install, python_of, smoke

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PAGE = TREE / "docs" / "install.md"


def project() -> dict[str, Any]:
    return tomllib.loads((TREE / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("version", [version for version in PYTHONS if version != HERE])
def test_a_queue_works_on_each_python_of_this_machine(version: str, tmp_path: Path) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on the PATH or in pyenv")
    packages = tmp_path / "packages"
    try:
        install(python, packages, *PACKAGES)
    except NoPackages as error:
        pytest.skip(f"no packages for Python {version}: {error}")
    (packages / "fdb").symlink_to(Path(fdb.__file__).parent)
    assert smoke(python, packages) == {"import": "ok", "embedded": "ok"}


def test_a_step_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    """A Python without the packages."""
    (tmp_path / "fdb.py").write_text("raise ImportError('no binding here')")
    assert smoke(sys.executable, tmp_path) == {"import": "ImportError: no binding here"}


def test_the_page_names_each_binding_and_each_python() -> None:
    page = PAGE.read_text()
    assert [version for version in (*BINDINGS, *PYTHONS) if f" {version}" not in page] == []


def test_the_extras_are_those_of_the_matrix() -> None:
    extras = project()["optional-dependencies"]
    pinned = {name: needs for name, needs in extras.items() if name.startswith("fdb")}
    assert pinned == {f"fdb{name.replace('.', '')}": [f"foundationdb=={name}.*"] for name in BINDINGS}
    assert [name for name in extras if f"`{name}`" not in PAGE.read_text()] == []


def test_the_packages_of_the_matrix_are_the_dependencies() -> None:
    needs = [need for need in project()["dependencies"] if not need.startswith("foundationdb")]
    assert sorted(needs) == sorted(PACKAGES)


def test_the_classifiers_are_the_pythons_of_the_matrix() -> None:
    prefix = "Programming Language :: Python :: 3."
    named = [name.removeprefix(prefix) for name in project()["classifiers"] if name.startswith(prefix)]
    assert [f"3.{minor}" for minor in named] == list(PYTHONS)
