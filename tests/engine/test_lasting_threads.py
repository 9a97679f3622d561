"""Background threads of the embedded engine survive an error at any step."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from greenlet import GreenletExit

import fdbqueue
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.embedded import watches
from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.environment import HandedOutVersions
from fdbqueue.embedded.surface import PendingFuture
from fdbqueue.embedded.watches import Doorbell
from tests.support import PATIENCE_S, FailsOnce, wait_until

ERRORS = [KeyError("gone"), OSError(9, "bad descriptor"), MemoryError()]
ENDS = [SystemExit(1), KeyboardInterrupt(), GreenletExit()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [*ERRORS, *ENDS], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", ["look", "drain"])
def test_a_doorbell_is_heard_after_any_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, step: str
) -> None:
    looks, heard = FailsOnce(error), threading.Semaphore(0)
    monkeypatch.setattr(watches, "_LOOK_EVERY_S", 0.01)
    if step == "drain":
        monkeypatch.setattr(Doorbell, "_drain", looks)
    bell = Doorbell(Directory.open(str(tmp_path)), RealRuntime(), looks if step == "look" else heard.release)
    bell.listen()
    if step == "drain":
        assert bell._slot is not None
        bell._ring(bell._slot)
    looks.wait_for(2 if step == "look" else 1)
    assert step == "look" or heard.acquire(timeout=PATIENCE_S)
    bell.close()
    wait_until(lambda: bell._socket is not None and bell._socket.fileno() < 0)


def test_a_doorbell_listens_once_a_thread_can_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_LOOK_EVERY_S", 0.01)
    heard = threading.Semaphore(0)
    runtime = RealRuntime()
    bell = Doorbell(Directory.open(str(tmp_path)), runtime, heard.release)
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "spawn", FailsOnce(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError):
            bell.listen()
    bell.listen()
    assert heard.acquire(timeout=PATIENCE_S)
    bell.close()
    wait_until(lambda: bell._socket is not None and bell._socket.fileno() < 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("error", [KeyError("gone"), GreenletExit()], ids=lambda error: type(error).__name__)
def test_versions_are_released_after_their_thread_has_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Otherwise the file would grow for the life of the process."""
    monkeypatch.setattr("fdbqueue.embedded.environment._RELEASE_EVERY_S", 0.01)
    releases = FailsOnce(error)
    monkeypatch.setattr(HandedOutVersions, "release_expired", releases)
    with fdbqueue.open(f"embedded:{tmp_path}") as db:
        versions: list[Any] = []
        for _ in range(2):
            transaction = db.create_transaction()
            versions.append(transaction.get_read_version().wait())
            releases.wait_for(1)
            wait_until(lambda: not any_thread("fdbqueue-versions") or len(versions) == 2)
        releases.wait_for(1)


def any_thread(name: str) -> bool:
    return any(thread.name == name for thread in threading.enumerate())


@pytest.mark.parametrize("error", [KeyError("gone"), SystemExit(1)], ids=lambda error: type(error).__name__)
def test_a_failing_callback_does_not_stop_the_others(error: BaseException) -> None:
    def fail(_: object) -> None:
        raise error

    called: list[object] = []
    callbacks: list[Callable[[Any], None]] = [fail, called.append]
    future = PendingFuture(RealRuntime())
    for callback in callbacks:
        future.on_ready(callback)
    future.complete("result")
    assert called == [future]
