"""Examples that print lines, in front of a reader that has ended, as `head` does."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fdbqueue
from examples import crawler, images, mailer
from fdbqueue import Database, Worker
from tests.pages.blocks import ROOT


def find_a_page(db: Database) -> None:
    db[crawler.FOUND["http://h.example/"]] = b"200, 5 links"


def bury_an_image(db: Database) -> None:
    images.open_stages(db)["check"].put(db, "missing.ppm")
    Worker(db, "check", images.work, attempts=1).run(until_empty=True)


def load_mails(db: Database) -> None:
    mailer.load(db, mailer.open_mails(db), "acme", "sale", iter(["ada@example.com"]))


def add_an_element(db: Database) -> None:
    queue = fdbqueue.ElementQueue(
        fdbqueue.Subspace(("outbox",)), schema={"body": "string", "header": "table?"}
    )
    queue.add(db, {"body": "hello", "header": {}})


def nothing(_: Database) -> None: ...


FILLED: dict[str, Callable[[Database], None]] = {
    "crawler.py": find_a_page,
    "elements_consumer.py": add_an_element,
    "elements_producer.py": nothing,
    "images.py": bury_an_image,
    "mailer.py": load_mails,
}


@pytest.mark.parametrize("example", FILLED)
def test_a_reader_that_has_ended_ends_an_example_quietly(tmp_path: Path, example: str) -> None:
    url = f"embedded:{tmp_path}/data"
    with fdbqueue.open(url) as db:
        FILLED[example](db)
    ours, theirs = os.pipe()
    os.close(ours)
    named = [url] if example.startswith("elements") else []
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example), *named],
        env=os.environ | {"FDBQUEUE_URL": url},
        stdout=theirs,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (1, "")
