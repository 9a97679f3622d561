"""A locustfile with a planted fault, FAULT: one delivery in fifty is not noted, or noted twice, or the ledger
cannot be read at the end.
"""

import os

from loadtest import hooks, options
from loadtest.run import item_of
from loadtest.shapes import ChosenShape as ChosenShape
from loadtest.users import Consumer
from loadtest.users import Producer as Producer

NOTED = {"lost": 0, "twice": 2, "unreadable": 1}[os.environ["FAULT"]]
Consumer.abstract = True


class Faulty(Consumer):
    def step(self):
        value = self.test.queues.plain.dequeue(self.test.db, timeout=0.2)
        if value is not None:
            for _ in range(NOTED if item_of(value)[1] % 50 == 7 else 1):
                self.test.book.consumed(item_of(value))
        return []


def unreadable(*_):
    raise OSError("unreadable")


if os.environ["FAULT"] == "unreadable":
    hooks.settle = unreadable
options.install()
hooks.install()
