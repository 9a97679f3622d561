"""The engine answers errors as FoundationDB's client library 7.3: compared where the library is.

It needs no cluster: the library itself tells the predicates, decides in `on_error`, and refuses calls.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fdbqueue.embedded as embedded
from fdbqueue.core.seam import DESCRIPTIONS
from fdbqueue.embedded.transaction import open_private
from tests.engine import answers
from tests.engine.answers import CALLS, CODES, FUTURES, Asking

TREE = Path(__file__).parents[2]
RELEASE = "7.3"
NO_SERVER = "test:test@127.0.0.1:1"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return its answers; it runs in a process of its own, as its network thread starts once only."""
    cluster_file = tmp_path_factory.mktemp("client") / "fdb.cluster"
    cluster_file.write_text(NO_SERVER)
    command = [sys.executable, "-m", answers.__name__, str(cluster_file)]
    # It writes to no cluster, so it needs neither guard nor errors of the run of the tests.
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("FDB", "PYTHON"))
    }
    done = subprocess.run(
        command, cwd=TREE, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode == answers.NO_LIBRARY:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if not found["release"].startswith(RELEASE):
        pytest.skip(f"the engine is that of {RELEASE}, and the library has release {found['release']}")
    return found


@pytest.fixture(scope="module")
def ours() -> dict[str, Any]:
    db = open_private()
    try:
        return Asking(embedded, db).answers()
    finally:
        db.close()


def differences(
    library: dict[str, list[int | None]], ours: dict[str, list[int | None]], names: list[str]
) -> Iterator[tuple[str, str, int | None, int | None]]:
    """Yield each answer that differs. Where the library asks a server, ours answers without an error."""
    for asked, answered in library.items():
        for name, theirs, own in zip(names, answered, ours[asked], strict=True):
            if (theirs or 0) != (own or 0):
                yield asked, name, theirs, own


@pytest.mark.parametrize("asked", ["predicates", "on_error"])
def test_errors_are_tried_again_as_the_library_does(library, ours, asked: str) -> None:
    assert dict(zip(CODES, ours[asked], strict=True)) == dict(zip(CODES, library[asked], strict=True))


def test_the_sentences_of_errors_are_the_librarys(library, ours) -> None:
    known = [code for code in DESCRIPTIONS if code in CODES]
    assert {code: ours["sentences"][code - CODES.start] for code in known} == {
        code: library["sentences"][code - CODES.start] for code in known
    }


def test_each_call_raises_the_error_that_the_library_raises(library, ours) -> None:
    """In each state of a transaction, and behind each bad call that has no future of its own."""
    assert list(differences(library["after_one"], ours["after_one"], list(FUTURES))) == []


def test_the_first_of_two_bad_calls_is_the_one_that_counts(library, ours) -> None:
    assert list(differences(library["after_two"], ours["after_two"], list(CALLS))) == []
