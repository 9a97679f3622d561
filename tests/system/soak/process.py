"""A process of a soak: it makes steps of all subjects, in random order, until it is killed."""

import logging
import os
import sys
from pathlib import Path

import fdbqueue
from tests.system.soak.client import NOTES, Client, Setup
from tests.system.soak.subjects import opened


def main(arguments: list[str]) -> None:
    directory, name, parent = Path(arguments[0]), arguments[1], int(arguments[2])
    setup = Setup.read(directory)
    # Handlers fail on purpose; without this handler, their failures go to stderr.
    logging.getLogger("fdbqueue.worker").addHandler(logging.NullHandler())
    with fdbqueue.open(setup.url, session_ttr_s=setup.session_ttr_s) as db:
        client = Client(db, setup, directory, name)
        subjects = opened(db, setup)
        (directory / NOTES / name).touch()  # it has begun
        while os.getppid() == parent:
            client.random.choice(subjects).step(client)


if __name__ == "__main__":
    main(sys.argv[1:])
