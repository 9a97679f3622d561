"""Charts of a chronicle: a gap of points is a gap of a line, and no zero."""

from typing import Any

from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import TaskQueue
from fdbqueue.operate.dashboard.app import create_app
from fdbqueue.operate.dashboard.charts import chronicle_view, rates_of
from fdbqueue.operate.dashboard.looks import CHART_WIDTH, ChronicleLook, parts_of
from fdbqueue.tasks.points import MINUTE_US, Point


def point(minute: int, put: int, ready: int = 0) -> Point:
    return Point(minute * MINUTE_US, ready, 0, 0, 0, put, 0, 0)


def test_a_rate_needs_both_of_its_points() -> None:
    points = [point(0, 0), point(1, 60), None, point(3, 180), point(4, 180)]
    assert rates_of(points, "put") == [None, 1, None, None, 0]


def test_a_gap_parts_a_line() -> None:
    assert len(list(parts_of([1, 2, None, 3, 4], 4))) == 2
    assert list(parts_of([None, None], 4)) == []
    [whole] = parts_of([0, 1, 2], 2)
    assert whole == f"0.00,23.0 {CHART_WIDTH / 2:.2f},12.0 {CHART_WIDTH:.2f},1.0"


def test_a_value_between_gaps_is_a_dash() -> None:
    [alone] = parts_of([None, 5, None], 5)
    assert alone == f"{CHART_WIDTH / 4:.2f},1.0 {3 * CHART_WIDTH / 4:.2f},1.0"


def test_a_chart_counts_its_gaps() -> None:
    look = ChronicleLook("q", True, [point(0, 0, ready=7), None], [point(0, 0)])
    rates, counts, *_ = chronicle_view(look).charts
    assert (rates.gaps, rates.top, counts.top) == (1, 0.0, 7)
    assert [line.parts for line in rates.lines] == [(), (), ()]


def page(db: Any, path: str) -> str:
    with TestClient(create_app(db), base_url="http://localhost") as client:
        answer = client.get(path)
        assert answer.status_code == 200
        return str(answer.text)


def test_the_page_has_charts_without_a_script() -> None:
    with fdbqueue.open("memory:") as db:
        queue = TaskQueue.create(db, "q", chronicle=True)
        TaskQueue.create(db, "plain")
        queue.put(db, 1)
        queue._calls(db)._keeper.tick()
        found = page(db, "/queues/q/chronicle")
        assert found.count('<svg class="chart"') == 4
        assert "1,439</span> minutes without figures" in found
        assert "/queues/q/chronicle" in page(db, "/queues/q")
        assert "fdbqueue alter plain --chronicle" in page(db, "/queues/plain/chronicle")
        assert "/queues/plain/chronicle" not in page(db, "/queues/plain")
