"""Troubles: told at once with a traceback, then once a minute with their count, for every error."""

from collections.abc import Iterator

import pytest

from fdbqueue.core import limits
from fdbqueue.core.errors import LayoutNewer, StorageReplaced
from fdbqueue.core.logger import Troubles, logger, traceback_of
from fdbqueue.core.visible import text_of
from tests.support import ManualClock

LOG = logger("fdbqueue.test")


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


ODD = [Mute(), SyntaxError("x", ("f", 1, "a", "text")), UnicodeEncodeError("utf-8", "\ud800", 0, 1, "")]


@pytest.fixture
def troubles(clock: ManualClock) -> Troubles:
    return Troubles(clock, lambda error: isinstance(error, ConnectionError))


def lines(caplog: pytest.LogCaptureFixture) -> Iterator[str]:
    return (record.getMessage() for record in caplog.records)


def test_the_same_trouble_is_told_once_a_minute_with_its_count(
    troubles: Troubles, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(121):
        troubles.met(LOG, "it fails", raised(KeyError("k")))
        clock.advance(1)
    first, *later = lines(caplog)
    assert first == "it fails: KeyError: 'k'"
    assert [bool(record.exc_text) for record in caplog.records] == [True, False, False]
    assert later == [f"it fails ({n} more times): KeyError: 'k'" for n in (60, 60)]


def test_different_troubles_are_told_apart(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    troubles.met(LOG, "one", raised(KeyError("k")))
    troubles.met(LOG, "another", raised(KeyError("k")))
    troubles.met(LOG, "one", raised(ValueError("k")))
    assert len(caplog.records) == 3


def test_errors_of_two_lines_are_two_troubles(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them has a cause of its own, below one and the same call."""

    def fail(*, early: bool) -> None:
        if early:
            raise KeyError("k")
        raise KeyError("k")

    for early in (True, False, True):
        try:
            fail(early=early)
        except KeyError as error:
            troubles.met(LOG, "it fails", error)
    assert len(caplog.records) == 2


def test_a_database_that_is_away_needs_no_traceback(
    troubles: Troubles, caplog: pytest.LogCaptureFixture
) -> None:
    troubles.met(LOG, "it fails", raised(ConnectionError("gone")))
    assert list(lines(caplog)) == ["it fails: ConnectionError: gone"]


def test_a_newer_layout_is_told_once_without_a_traceback(
    troubles: Troubles, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its text names the queue, the layout and the cure, and only a newer release ends it."""
    for _ in range(121):
        troubles.met(LOG, "it is not swept", raised(LayoutNewer(name="q", layout=2, known=1)))
        clock.advance(1)
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("it is not swept: LayoutNewer: The queue 'q' has key layout 2, and")
    assert not record.exc_text


def test_the_newer_layout_of_each_queue_is_told(troubles: Troubles, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("q", "r", "q"):
        troubles.met(LOG, "it is not swept", raised(LayoutNewer(name=name, layout=2, known=1)))
    assert [record.getMessage().partition(" has ")[0][-3:] for record in caplog.records] == ["'q'", "'r'"]


def test_an_error_that_does_not_heal_is_told_once(
    troubles: Troubles, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever fails because of it: no call on the database succeeds in this process any more."""
    for title in ("it fails", "something else, too") * 60:
        troubles.met(LOG, title, raised(StorageReplaced(path="/data", file="data.mdb")))
        clock.advance(1)
    [record] = caplog.records
    assert record.getMessage().startswith("StorageReplaced: /data: the file data.mdb was removed or replaced")
    assert not record.exc_info


def test_one_error_that_does_not_heal_is_told_by_one_database(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """`fdbqueue work` and its supervisor have one each, in one process."""
    for troubles in (Troubles(clock), Troubles(clock)):
        troubles.met(LOG, "it fails", raised(StorageReplaced(path="/shared", file="data.mdb")))
    assert len(caplog.records) == 1


def test_the_memory_of_troubles_is_bounded(troubles: Troubles) -> None:
    for number in range(3 * limits.TROUBLES_KEPT):
        troubles.met(LOG, f"trouble {number}", KeyError("k"))
    assert len(troubles._met) == limits.TROUBLES_KEPT


def test_the_oldest_trouble_is_forgotten_first(
    troubles: Troubles, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "TROUBLES_KEPT", 2)
    for title in ("first", "second", "third", "second", "first"):
        troubles.met(LOG, title, KeyError("k"))
    assert [line.partition(":")[0] for line in lines(caplog)] == ["first", "second", "third", "first"]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
def test_an_error_that_cannot_be_formatted_is_told_all_the_same(
    troubles: Troubles, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    caught = raised(error)
    assert isinstance(text_of(caught), str)
    assert type(error).__name__ in traceback_of(caught, caught.__traceback__)
    troubles.met(LOG, "it fails", caught)
    assert "it fails" in caplog.text


def test_an_error_of_the_binding_has_a_readable_text() -> None:
    class FDBError(Exception):
        """As the binding has it: the client library describes a code in bytes."""

        description, code = b"Operation aborted because the transaction timed out", 1031

        def __str__(self) -> str:
            return f"{self.description!r} ({self.code})"

    assert text_of(FDBError()) == "Operation aborted because the transaction timed out (1031)"


@pytest.mark.parametrize("refusal", [ValueError("full"), SystemExit(1)])
def test_a_log_that_fails_is_no_trouble_of_the_thread(
    troubles: Troubles, monkeypatch: pytest.MonkeyPatch, refusal: BaseException
) -> None:
    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr(LOG, "error", refuse)
    troubles.met(LOG, "it fails", KeyError("k"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit])
def test_what_asks_a_thread_to_end_passes(error: type[BaseException]) -> None:
    class Asking(Exception):
        def __str__(self) -> str:
            raise error

    with pytest.raises(error):
        text_of(Asking())
