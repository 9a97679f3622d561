"""Setup and teardown that worker processes import: each writes a line."""

import json
import os
from collections.abc import Iterator
from pathlib import Path


def begin() -> None:
    _note("begin")


def end() -> None:
    _note("end")


def generator() -> Iterator[None]:
    yield


def _note(what: str) -> None:
    with Path(os.environ["FDBQUEUE_TEST_NOTES"]).open("a") as file:
        file.write(json.dumps([what, os.getpid()]) + "\n")
