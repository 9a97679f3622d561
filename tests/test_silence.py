"""Silences of a database, as a process measures them."""

from functools import partial

import pytest

from fdbqueue.core import limits
from fdbqueue.core.sessions.keeper import Silence
from fdbqueue.embedded import FDBError
from tests.support import ManualClock


def test_short_waits_do_not_hide_a_long_silence() -> None:
    clock = ManualClock()
    silence, began = Silence(clock), clock.now()
    silence.ask("a", lambda: clock.advance(7))
    for _ in range(limits.SPELLS_KEPT + 1):
        silence.ask("a", lambda: clock.advance(limits.SILENCE_MIN_S / 2))
    assert silence.longest_s(began) == 7
    assert silence.longest_s(began + 8) == 0


def test_a_silence_begins_with_its_first_question() -> None:
    clock = ManualClock()
    silence, began = Silence(clock), clock.now()
    silence.asked("a")
    clock.advance(2)
    silence.asked("a")
    clock.advance(1)
    assert silence.longest_s(began) == 3
    silence.answered("a")
    assert silence.longest_s(began) == 3
    assert silence.longest_s(clock.now() + 1) == 0


def test_a_later_question_of_another_hides_no_silence() -> None:
    clock = ManualClock()
    silence, began = Silence(clock), clock.now()
    silence.asked("a")
    clock.advance(5)
    silence.asked("b")
    clock.advance(1)
    assert silence.longest_s(began) == 6
    silence.answered("b")
    assert silence.longest_s(began) == 6


def test_an_answer_leaves_the_question_around_it_open() -> None:
    """A keeper that ends a dead session renews its own sessions meanwhile."""
    clock = ManualClock()
    silence, began = Silence(clock), clock.now()

    def end_a_session() -> None:
        silence.ask("keeper", lambda: clock.advance(1))
        clock.advance(5)
        assert silence.longest_s(began) == 5

    silence.ask("keeper", end_a_session)
    assert silence.longest_s(began) == 5
    clock.advance(9)
    assert silence.longest_s(began) == 5


@pytest.mark.parametrize("error", [ArithmeticError(), FDBError(2101), KeyboardInterrupt()])
def test_an_error_is_an_answer(error: BaseException) -> None:
    """A call of another thread asks in the name of the keeper, which would end the silence a tick later."""
    clock = ManualClock()
    silence, began = Silence(clock), clock.now()
    with pytest.raises(type(error)):
        silence.ask("keeper", partial(fail, error))
    clock.advance(9)
    assert silence.longest_s(began) == 0


def test_the_error_of_a_database_that_is_away_is_no_answer() -> None:
    clock = ManualClock()
    silence, began = Silence(clock), clock.now()
    with pytest.raises(FDBError):
        silence.ask("keeper", partial(fail, FDBError(1031)))
    clock.advance(9)
    assert silence.longest_s(began) == 9
    silence.ask("keeper", int)
    clock.advance(9)
    assert silence.longest_s(began + 10) == 0


def fail(error: BaseException) -> None:
    raise error
