"""Handlers that worker processes import: each task says how its handler acts."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Bury, Done, Hooks
from fdbqueue.embedded import store
from fdbqueue.fleet import child

# The test chooses the subspace: processes inherit the environment.
SPACE = "FDBQUEUE_TEST_SPACE"
EFFECTS = Subspace(("effects",), bytes.fromhex(os.environ.get(SPACE, "")))
# Seconds beyond its grace after which a process ends itself, if the test has no time for the usual ten.
KILL_AFTER = "FDBQUEUE_TEST_KILL_AFTER_S"
child.KILL_AFTER_S = float(os.environ.get(KILL_AFTER, child.KILL_AFTER_S))
_kept = []
_attempts = []


def effect(task):
    """Count the attempt in the database, in the transaction of its ack."""
    raise Done(lambda tr: tr.add(EFFECTS[task.data].key(), b"\x01"))


def obey(task):
    """Act as the task says: ["sleep", s], ["die"], ["stop"], ["leak", MB], ["fork"], ["exit"], ["raise"]."""
    what, *arguments = task.data
    _attempts.append(task.attempts)
    deeds[what](*arguments)
    effect_of(task)


def effect_of(task):
    raise Done(lambda tr: tr.add(EFFECTS[task.id].key(), b"\x01"))


def leak(mb):
    _kept.append(bytearray(os.urandom(1_000_000) * mb))


def fork():
    """Fork a child that returns into the caller of the handler, as it does not exit."""
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0


def sub():
    subprocess.run([sys.executable, "-c", "print(1)"], check=True, stdout=subprocess.DEVNULL)


def leave_a_thread():
    """Leave a thread for which the end of Python waits."""
    _kept.append(concurrent.futures.ThreadPoolExecutor(1))
    _kept[-1].submit(time.sleep, 3600)


def leave_a_child():
    """Leave a child for which the end of Python waits, and which waits for the end of its parent."""
    multiprocessing.get_context("fork").Process(target=_outlive, args=(os.getpid(),)).start()


def _outlive(parent):
    while os.getppid() == parent:
        time.sleep(0.1)


def stop_once():
    """Stop this process between commits: within one, it would stop every writer of the directory.

    The signal goes to this thread. Another thread might take a signal to the process, and this thread would
    stop a little later, in its ack.
    """
    if _attempts[-1] == 1:
        with contextlib.ExitStack() as stack:
            for opened in list(store._stores.values()):
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


def fail(after_s=0):
    time.sleep(after_s)
    raise ValueError("told to")


def bury():
    raise Bury("told to")


def die_first():
    """End the process at the first attempt, before its first report."""
    if _attempts[-1] == 1:
        os._exit(3)


deeds = {
    "sleep": time.sleep,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": stop_once,
    "leak": leak,
    "leave a thread": leave_a_thread,
    "leave a child": leave_a_child,
    "fork": fork,
    "sub": sub,
    "exit": lambda: os._exit(0),
    "exit 9": lambda: os._exit(9),
    "raise": fail,
    "bury": bury,
    "die first": die_first,
    "nothing": lambda: None,
}


async def stand_still(_):
    """Keep the loop, and so the heartbeat and the stop of its worker, from running."""
    time.sleep(3600)


def factory(argument):
    """Make a handler that has an argument."""

    def handler(task):
        raise Done(lambda tr: tr.set(EFFECTS[task.id].key(), argument.encode()))

    return handler


def failing_factory(argument):
    raise ValueError(f"no handler for {argument}")


def transactional(tr, task):
    tr.add(EFFECTS[task.data].key(), b"\x01")


hooks = Hooks(retried=lambda event: print(f"hooked {event.name} {event.task.data}", file=sys.stderr))
not_callable = fdbqueue.__doc__


ROOT = Subspace((), bytes.fromhex(os.environ.get(SPACE, "")))
called, awaited = fdbqueue.Tasks("jobs", root=ROOT), fdbqueue.Tasks("jobs", root=ROOT)


@called.task(transactional=True)
def count(tr, name, times=1):
    tr.add(EFFECTS[name].key(), bytes([times]))


@awaited.task(transactional=True)
async def count_later(tr, name):
    tr.set(EFFECTS[name].key(), b"\x03")
