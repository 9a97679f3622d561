"""How many users there are at what time."""

import pytest

from loadtest.shapes import SHAPES, users_at


def course(shape, total_s, users):
    return [users_at(shape, second, total_s, users) for second in range(total_s)]


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_a_shape_has_users_at_once_and_ends_in_time(shape):
    """At least one, never more than asked for."""
    assert all(1 <= count <= 20 for count in course(shape, 60, 20))
    assert max(course(shape, 60, 20)) == 20
    assert users_at(shape, 60, 60, 20) is None


def test_steady_is_all_of_them():
    """From beginning to end."""
    assert course("steady", 10, 7) == [7] * 10


def test_ramp_doubles():
    """In four steps of the same length."""
    assert course("ramp", 8, 32) == [4, 4, 8, 8, 16, 16, 32, 32]


def test_burst_goes_up_and_down_again():
    """A tenth of them, all for three seconds in ten."""
    assert course("burst", 20, 10) == ([10] * 3 + [1] * 7) * 2


def test_soak_stays():
    """Up in the first tenth of the time."""
    assert course("soak", 100, 50)[10:] == [50] * 90
    assert course("soak", 100, 50)[:3] == [1, 5, 10]
