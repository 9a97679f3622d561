"""SIGTERM always ends a run: in good order, or without a verdict if that takes too long.

The handlers of SIGTERM run in gevent's loop, which a native call can block for ever. Therefore SIGTERM is
blocked in all threads but one, which no loop can block. It passes the first signal on to the handlers. After
a second one, or after `ORDERLY_END_S`, it ends the process with exit status 1.
"""

import os
import signal
import sys
import threading

ORDERLY_END_S = 120.0
_TERM = {signal.SIGTERM}


def install() -> None:
    """Supervise SIGTERM in this process and its forked children. Call it before any other thread starts."""
    _start()
    os.register_at_fork(after_in_child=_start)


def _start() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)
    threading.Thread(target=_supervise, name="loadtest-termination", daemon=True).start()


def _supervise() -> None:
    signal.sigwait(_TERM)
    _pass_on()
    _tell("loadtest: SIGTERM: ending the run; a second one ends it at once, without a verdict")
    again = signal.sigtimedwait(_TERM, ORDERLY_END_S)
    reason = "a second SIGTERM" if again else f"still busy {ORDERLY_END_S:.0f} s after SIGTERM"
    _tell(f"verdict: none: {reason}")
    os._exit(1)


def _pass_on() -> None:
    """Have the handler of this process called, or the process ended if it has none."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERM)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, _TERM)


def _tell(line: str) -> None:
    # Not `print`: a thread that was stopped in a write may hold the lock of the stream.
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"{line}\n".encode())
