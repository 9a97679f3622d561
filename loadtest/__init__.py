"""Locust users that call the library itself, on either engine: `python -m loadtest --help`.

How greenlets and threads go together here. Locust's users are greenlets of one OS thread; the library
blocks OS threads, in native calls (the binding's `fdb_future_block_until_ready`, LMDB's writer lock) and in
locks and conditions that the threads of one process share. So each library call runs in an OS thread of a
pool (threads.py), and its greenlet sleeps until the thread is done.

Those threads need Python's own locks, events and threads. Under gevent's monkey patching `threading.Thread`
is a greenlet, and that ends it for both engines: the binding's network thread (`fdb_run_network`, which
never returns) would run in the hub and stop every greenlet; the embedded engine's locks would be greenlet
locks, shared by threads that each have a hub. Therefore Locust must not patch, which it offers, and all that
its own code needs, a `time.sleep` that does not stop its loop and an `os.waitpid` that knows which processes
the loop has collected, is patched in hooks.py, after the library has taken the real sleep.
"""

import os

import fdbqueue as fdbqueue  # its Runtime takes the real time.sleep before it is patched

os.environ["LOCUST_SKIP_MONKEY_PATCH"] = "1"

from gevent import monkey

if monkey.is_module_patched("threading"):
    raise ImportError(
        "gevent has patched threading, and fdbqueue needs real threads: start with `python -m loadtest`, or "
        "set LOCUST_SKIP_MONKEY_PATCH=1 for `locust -f loadtest/locustfile.py`"
    )
