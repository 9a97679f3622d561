"""Costs: round trips of a refresh, and one look at the database for all pages and streams."""

import asyncio
from collections.abc import Iterator

import pytest
from starlette.requests import Request

import fdbqueue
from fdbqueue import Database, Figures, Overview, TaskQueue
from fdbqueue.core import limits
from fdbqueue.operate.dashboard.guard import Access, Room
from fdbqueue.operate.dashboard.rendering import Renderer, Sampler, Streams
from fdbqueue.operate.dashboard.roles import Roles
from tests.dashboard.conftest import NAME, Served
from tests.dashboard.support import browsing
from tests.tasks.support import StillClock
from tests.tasks.trips import Trips

QUEUES = 50


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


@pytest.fixture
def many(clock: StillClock) -> Iterator[tuple[Database, Trips]]:
    with fdbqueue.open("memory:", runtime=clock) as db:
        for number in range(QUEUES):
            kind = ("fifo", "utube", "fair")[number % 3]
            TaskQueue.create(db, f"q{number}", kind).put_many(
                db, list("abc"), **({} if kind == "fifo" else {"key": 1})
            )
        trips = Trips(db.engine)
        with Database(trips, clock) as counted:  # type: ignore[arg-type]  # options are never asked for
            yield counted, trips


def test_a_refresh_of_50_queues_takes_one_round_trip(many: tuple[Database, Trips], clock: StillClock) -> None:
    """The first look learns their names, and takes two."""
    db, trips = many
    with browsing(db) as browser:
        assert "50 queues" in browser.said("/")
        assert trips.count <= 2
        for _ in range(3):
            before = trips.count
            clock.advance(limits.DASHBOARD_LOOK_EVERY_S)
            assert "50 queues" in browser.said("/")
            assert trips.count - before == 1


def test_pages_within_two_seconds_share_a_look(many: tuple[Database, Trips]) -> None:
    db, trips = many
    with browsing(db) as browser:
        browser.get("/")
        before = trips.count
        for _ in range(5):
            browser.get("/")
        assert trips.count == before


def request_at(path: str) -> Request:
    return Request({"type": "http", "headers": [], "root_path": path})


def test_streams_share_one_look(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    figures = Overview.figures

    def counted(overview: Overview, tr: object) -> Figures:
        looks.append(1)
        return figures(overview, tr)  # type: ignore[arg-type]

    monkeypatch.setattr(Overview, "figures", counted)
    monkeypatch.setattr(limits, "DASHBOARD_LOOK_EVERY_S", 0.01)

    async def watch() -> list[bytes]:
        room, renderer = Room(served.db), Renderer(Access(b""), Roles())
        streams = Streams(Sampler(room), renderer, Roles())

        async def one(queue: str | None) -> list[bytes]:
            return [event async for event in streams._events(request_at("/at"), queue)]

        async def end() -> None:
            while not looks:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            streams.close()

        answers = await asyncio.gather(*(one(queue) for queue in (None, None, NAME, "gone")), end())
        return [events[1] for events in answers[:4]]

    listed, again, figures_of, gone = asyncio.run(watch())
    assert len(looks) == 1  # the clock stands still
    assert listed == again
    assert listed.startswith(b'event: part\ndata: {"part":"queues","html":"')
    assert b"/at/queues/" in listed
    assert figures_of.startswith(b'event: part\ndata: {"part":"figures","html":"')
    assert gone == b'event: silence\ndata: {"text":"This queue is gone."}\n\n'


def test_a_stream_tells_that_the_database_is_silent() -> None:
    async def watch(db: Database) -> bytes:
        streams = Streams(Sampler(Room(db)), Renderer(Access(b""), Roles()), Roles())
        db.close()
        events = streams._events(request_at(""), None)
        await anext(events)
        said = await anext(events)
        streams.close()
        assert [event async for event in events] == []
        return said

    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        assert asyncio.run(watch(db)).startswith(
            b'event: silence\ndata: {"text":"The database does not answer'
        )


def test_a_dashboard_that_is_full_says_so(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STREAMS_MAX", 0)
    assert "too many open pages" in served.reader.get("/events", 503)
