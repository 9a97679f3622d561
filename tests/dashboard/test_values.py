"""The values behind pages: names in paths, rates of counters, short texts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fdbqueue
from fdbqueue import Figures, QueueFigures, TaskFigures
from fdbqueue.core.visible import visible
from fdbqueue.operate.dashboard.looks import CHART_HEIGHT, CHART_WIDTH, History, line_of
from fdbqueue.operate.dashboard.views import cell, moment, name_in, number, payload_text, segment, span

FEW = settings(max_examples=30)


@FEW
@given(st.text(st.characters(codec="utf-8")))
def test_a_name_survives_its_path(name: str) -> None:
    part = segment(name)
    assert name_in(part) == name
    assert set(part) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-~")


@FEW
@given(st.text(max_size=20))
def test_a_typed_name_is_never_refused(part: str) -> None:
    name_in(part)


@FEW
@given(
    st.recursive(st.none() | st.integers() | st.floats() | st.text() | st.binary(), st.lists, max_leaves=5)
)
def test_any_data_has_a_visible_text(data: object) -> None:
    shown = payload_text(data).text
    assert visible(shown, keep="\n\t") == shown
    assert "\n" not in cell(data)


def test_texts_are_short() -> None:
    assert [span(seconds) for seconds in (None, 0, 0.44, 42.9, 190, 7500, 363_600, -3)] == [
        "", "0s", "0.4s", "42s", "3m10s", "2h5m", "4d5h", "0s",
    ]  # fmt: skip
    assert [number(value) for value in (None, 0, 1234567, 0.051, 12.34, 1234.5)] == [
        "", "0", "1,234,567", "0.05", "12.3", "1,234",
    ]  # fmt: skip
    assert (moment(0.0), moment(None)) == ("1970-01-01 00:00:00", "")
    assert moment(1e20)


def figures(put: int, done: int, ready: int = 0) -> Figures:
    calls = {"put": put, "take": done, "ack": done, "delete": 0, "cancel": 0}
    tasks = TaskFigures(ready, 0, 0, 0, calls, False, None, None, None, True, 0.0, 0, ())
    return Figures(0.0, (QueueFigures("q", "fifo", ready, 0, tasks), QueueFigures("p", "queue", 1, 0)), 0)


def test_rates_are_those_between_the_last_two_points() -> None:
    history = History()
    assert history.trend("q").rates is None
    for at_s, put, done in ((0.0, 0, 0), (2.0, 10, 0), (4.0, 10, 4)):
        history.add(figures(put, done, put - done), at_s)
    trend = history.trend("q")
    assert trend.rates is not None
    assert (trend.rates.put, trend.rates.take, trend.rates.done) == (0, 2, 2)
    assert (trend.done, trend.ready) == ((0, 2), (0, 10, 6))
    assert history.trend("p").rates is None


@pytest.mark.parametrize(("put", "done"), [(3, 2), (9, 1)])
def test_a_queue_that_was_created_again_has_no_past(put: int, done: int) -> None:
    history = History()
    history.add(figures(9, 2), 0.0)
    history.add(figures(put, done), 2.0)
    assert history.trend("q").rates is None


def test_the_past_is_bounded() -> None:
    history = History()
    for number_ in range(500):
        history.add(figures(number_, 0), float(number_))
    assert len(history.trend("q").ready) == fdbqueue.core.limits.POINTS_KEPT


@FEW
@given(st.lists(st.floats(0, 1e9)))
def test_a_line_stays_in_its_chart(values: list[float]) -> None:
    line = line_of(values, max(values, default=0)).split()
    points = [tuple(map(float, point.split(","))) for point in line]
    assert len(points) == (0 if len(values) < 2 else len(values))
    assert all(0 <= x <= CHART_WIDTH and 0 <= y <= CHART_HEIGHT for x, y in points)
