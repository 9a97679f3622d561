"""Handlers that worker processes import: what they do is in the task."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Bury, Done, Hooks, TaskQueue
from fdbqueue.embedded import stores

# Where the test says: what its processes inherit is the environment.
SPACE = "FDBQUEUE_TEST_SPACE"
EFFECTS = Subspace(("effects",), bytes.fromhex(os.environ.get(SPACE, "")))
_kept = []
_attempts = []


def effect(task):
    """Counts itself in the database, in the transaction of its ack."""
    raise Done(lambda tr: tr.add(EFFECTS[task.data].key(), b"\x01"))


def obey(task):
    """Do what the task says: ["sleep", s], ["die"], ["stop"], ["leak", MB], ["fork"], ["exit"], ["raise"]."""
    what, *arguments = task.data
    _attempts.append(task.attempts)
    deeds[what](*arguments)
    effect_of(task)


def put_next(task):
    """Puts the data of the task into another queue of the same database."""
    root = Subspace((), bytes.fromhex(os.environ[SPACE]))
    TaskQueue.open(task.database, "next", root=root).put(task.database, task.data)


def effect_of(task):
    raise Done(lambda tr: tr.add(EFFECTS[task.id].key(), b"\x01"))


def leak(mb):
    _kept.append(bytearray(os.urandom(1_000_000) * mb))


def fork():
    """A child that returns into the handler's caller, as one that forgets to exit does."""
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0


def sub():
    subprocess.run([sys.executable, "-c", "print(1)"], check=True, stdout=subprocess.DEVNULL)


def stop_once():
    """Between commits: who stops in the middle of one stops every writer of the directory.

    The signal is this thread's own: one of the process may be taken by another thread, and this one be
    stopped a little later, when it has gone on to its ack.
    """
    if _attempts[-1] == 1:
        with contextlib.ExitStack() as stack:
            for opened in list(stores._stores.values()):
                stack.enter_context(between_commits(opened.committer))
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


@contextlib.contextmanager
def between_commits(committer):
    while True:
        with committer._lock:
            if committer._leader is None:
                yield
                return
        time.sleep(0.001)


def fail():
    raise ValueError("told to")


def bury():
    raise Bury("told to")


def die_first():
    """At its first attempt, before anything is reported."""
    if _attempts[-1] == 1:
        os._exit(3)


deeds = {
    "sleep": time.sleep,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": stop_once,
    "leak": leak,
    "fork": fork,
    "sub": sub,
    "exit": lambda: os._exit(0),
    "exit 9": lambda: os._exit(9),
    "raise": fail,
    "bury": bury,
    "die first": die_first,
    "nothing": lambda: None,
}


def factory(argument):
    """A handler that has been told something."""

    def handler(task):
        raise Done(lambda tr: tr.set(EFFECTS[task.id].key(), argument.encode()))

    return handler


def failing_factory(argument):
    raise ValueError(f"no handler for {argument}")


def transactional(tr, task):
    tr.add(EFFECTS[task.data].key(), b"\x01")


hooks = Hooks(retried=lambda event: print(f"hooked {event.name} {event.task.data}", file=sys.stderr))
not_callable = fdbqueue.__doc__
