"""Stored results and chords, as values of their own: their ends, their waits, and their counts."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, states
from celery.exceptions import ChordError
from celery.exceptions import TimeoutError as CeleryTimeout
from celery.signals import after_task_publish

import fdbqueue
import fdbqueue.integrations.celery
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import FDBError
from fdbqueue.integrations.celery import backend, databases
from tests.queue_support import FATES, faulty
from tests.support import PATIENCE_S, ManualClock

CHORD = "chord"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def db(clock: ManualClock) -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:", runtime=clock) as database:
        yield database


def rows(db: fdbqueue.Database) -> int:
    under = DEFAULT_ROOT.range(("celery",))
    return len(db.create_transaction().get_range(under.start, under.stop).to_list())


def test_a_chord_is_complete_when_each_part_has_returned_once(db: fdbqueue.Database) -> None:
    """A part may be delivered twice, and return before the size is known."""
    backend.part_returned(db, CHORD, 1, "b", None)
    backend.part_returned(db, CHORD, 1, "b", None)
    backend.begin_chord(db, CHORD, 2, None)
    backend.extend_chord(db, CHORD, "added")
    backend.part_returned(db, CHORD, 0, "a", None)
    assert not backend.chord_is_complete(db, CHORD)
    backend.part_returned(db, CHORD, 2, "added", None)
    assert backend.chord_is_complete(db, CHORD)
    assert backend.parts_of_chord(db, CHORD) == ["a", "b", "added"]


def test_one_transaction_claims_a_chord(db: fdbqueue.Database) -> None:
    backend.begin_chord(db, CHORD, 1, None)
    backend.part_returned(db, CHORD, 0, "a", None)
    one, other = db.create_transaction(), db.create_transaction()
    assert [backend.claim_chord(tr, CHORD) for tr in (one, other)] == [True, True]
    one.commit().wait()
    with pytest.raises(fdbqueue.embedded.FDBError, match="1020"):
        other.commit().wait()
    assert not backend.chord_is_complete(db, CHORD)
    assert rows(db) == 0


def test_unfinished_chords_go_after_their_end(db: fdbqueue.Database, clock: ManualClock) -> None:
    backend.begin_chord(db, CHORD, 2, 10)
    backend.part_returned(db, CHORD, 0, "a", 10)
    backend.part_returned(db, "late copy", 0, "a", 10)
    clock.advance(10)
    backend.begin_chord(db, "another", 1, None)
    under = databases.parts(CHORD)
    assert db.create_transaction().get_range(under.start, under.stop).to_list() == []
    assert rows(db) == 1


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Any]:
    address = f"fdbqueue+embedded://{tmp_path}/data"
    app = Celery("results", broker=address, backend=address, set_as_current=False)
    yield app
    app.close()
    fdbqueue.integrations.celery.close()


def test_a_wait_ends_with_its_result_and_polls_nothing(app: Any) -> None:
    """It hears of the change: it would look again after ten seconds only."""
    backend = app.backend
    waits = threading.Thread(target=lambda: got.append(app.AsyncResult("a").get(timeout=PATIENCE_S)))
    got: list[Any] = []
    waits.start()
    backend.store_result("other", 1, states.SUCCESS)
    backend.store_result("a", None, states.STARTED)
    backend.store_result("a", 42, states.SUCCESS)
    waits.join(PATIENCE_S)
    assert got == [42]


def test_a_wait_that_ends_in_a_failure_tells_its_caller_first(app: Any) -> None:
    """Celery raises the error of a failed part of a chord then, in place of the ChordError of its body."""
    app.backend.store_result("body", ChordError("a part failed"), states.FAILURE)

    def raise_that_of_a_part() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        app.backend.wait_for("body", timeout=PATIENCE_S, on_interval=raise_that_of_a_part)
    with pytest.raises(ZeroDivisionError):
        app.ResultSet([app.AsyncResult("body")]).get(timeout=PATIENCE_S, on_interval=raise_that_of_a_part)


def test_a_failure_is_returned_to_a_wait_that_wants_no_errors(app: Any) -> None:
    app.backend.store_result("part", ZeroDivisionError(), states.FAILURE)
    app.backend.store_result("body", ChordError("a part failed"), states.FAILURE)
    body = app.AsyncResult("body", parent=app.GroupResult("header", [app.AsyncResult("part")]))
    assert isinstance(body.get(timeout=PATIENCE_S, propagate=False), ChordError)
    with pytest.raises(ZeroDivisionError):
        body.get(timeout=PATIENCE_S)


def test_the_parts_of_a_generator_are_sent_as_they_come(app: Any) -> None:
    def header() -> Iterator[Any]:
        for _ in range(10):
            sent_before.append(len(sent))
            yield app.signature("part")

    def note(**_: Any) -> None:
        sent.append(1)

    sent: list[int] = []
    sent_before: list[int] = []
    after_task_publish.connect(note)
    chord(header(), app.signature("body"), app=app).apply_async()
    assert len(sent) == 10
    assert sent_before[-1] > 0


def test_a_wait_ends_after_its_time(app: Any) -> None:
    with pytest.raises(CeleryTimeout):
        app.AsyncResult("a").get(timeout=0.05)


def test_a_success_stays_after_a_second_delivery(app: Any) -> None:
    app.backend.store_result("a", 42, states.SUCCESS)
    app.backend.store_result("a", 43, states.SUCCESS)
    app.backend.store_result("a", ValueError("late"), states.FAILURE)
    assert app.AsyncResult("a").get(timeout=PATIENCE_S) == 42


def test_a_result_that_was_forgotten_is_gone(app: Any) -> None:
    app.backend.store_result("a", 42, states.SUCCESS)
    app.AsyncResult("a").forget()
    assert app.AsyncResult("a").state == states.PENDING


def test_the_address_of_a_backend_is_shown_whole(app: Any, tmp_path: Path) -> None:
    assert app.backend.as_uri() == f"fdbqueue+embedded://{tmp_path}/data"


@pytest.mark.parametrize("fate", FATES)
def test_the_end_of_a_chord_is_known_after_any_result(fate: str) -> None:
    """A call that did not learn it would never send the body."""
    with fdbqueue.open("memory:") as db:
        backend.begin_chord(db, CHORD, 1, None)
        backend.part_returned(db, CHORD, 0, "a", None)
        unsure, engine = faulty(db, FDBError)
        engine.fate = FATES[fate]
        assert backend.ended_chords(unsure, CHORD)
        assert not backend.ended_chords(unsure, CHORD)
