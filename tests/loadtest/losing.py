"""A locustfile with a planted fault, FAULT.

lost, twice    one delivery in fifty is not noted, or noted twice
unreadable     the ledger cannot be read at the end
blocked        at the end a native call blocks gevent's loop for ever
late           the process opens the database after the run has ended
"""

import os
import sys

from fdbqueue import RealRuntime
from loadtest import hooks, options, termination
from loadtest.run import item_of
from loadtest.shapes import ChosenShape as ChosenShape
from loadtest.users import Consumer
from loadtest.users import Producer as Producer

NOTED = {"lost": 0, "twice": 2, "unreadable": 1, "blocked": 1, "late": 1}[os.environ["FAULT"]]
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


def blocked(*_):
    print("the loop is blocked", file=sys.stderr, flush=True)
    RealRuntime.sleep(3_600)


class LateRun(hooks.Run):
    def __init__(self, *arguments):
        RealRuntime.sleep(4)
        super().__init__(*arguments)


if os.environ["FAULT"] == "late":
    hooks.Run = LateRun
if os.environ["FAULT"] == "unreadable":
    hooks.settle = unreadable
if os.environ["FAULT"] == "blocked":
    hooks.Load._conclude = blocked
    termination.ORDERLY_END_S = 0.5
options.install()
hooks.install()
