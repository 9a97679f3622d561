"""Silences of a database, as a process measures them."""

from fdbqueue import limits
from fdbqueue.sessions.silence import Silence
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
