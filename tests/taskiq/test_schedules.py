"""The schedule source: schedules stay, and each turn is fired once by any number of schedulers."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from taskiq import InMemoryBroker, ScheduledTask, TaskiqScheduler
from taskiq.serializers import PickleSerializer

import fdbqueue
from fdbqueue import aio
from fdbqueue.core.errors import InvalidArgument, PayloadTooLarge, WrongType
from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueScheduleSource, broker
from fdbqueue.integrations.taskiq.broker import turn_of
from tests.taskiq.support import counts, run, started

SECOND, MINUTE = 1_000_000, 60_000_000
NOON = round(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) * SECOND


def schedule(**when: Any) -> ScheduledTask:
    return ScheduledTask(task_name="note", labels={}, args=[1], kwargs={}, schedule_id="a", **when)


@asynccontextmanager
async def source_of(url: str) -> AsyncIterator[tuple[FdbQueueBroker, FdbQueueScheduleSource]]:
    async with started(url) as broker:
        source = FdbQueueScheduleSource(broker)
        await source.startup()
        for old in await source.get_schedules():
            await source.delete_schedule(old.schedule_id)
        yield broker, source


@pytest.mark.parametrize(
    ("when", "last_us", "now_us", "turn_us"),
    [
        ({"cron": "* * * * *"}, None, NOON + 5, NOON),
        ({"cron": "* * * * *"}, NOON, NOON + MINUTE - 1, None),
        ({"cron": "* * * * *"}, NOON, NOON + MINUTE, NOON + MINUTE),
        ({"cron": "* * * * *"}, NOON, NOON - 1, None),
        ({"interval": 10}, None, NOON, NOON),
        ({"interval": 10}, NOON, NOON + 9 * SECOND, None),
        ({"interval": 10}, NOON, NOON + 10 * SECOND - 100, NOON + 10 * SECOND - 100),
        ({"interval": timedelta(seconds=10)}, NOON, NOON + 9 * SECOND, None),
        ({"time": datetime(2026, 1, 1, tzinfo=UTC)}, None, NOON, NOON),
    ],
)
def test_a_schedule_has_one_turn_a_minute_or_an_interval(
    when: dict[str, Any], last_us: int | None, now_us: int, turn_us: int | None
) -> None:
    assert turn_of(schedule(**when), last_us, now_us) == turn_us


@pytest.mark.parametrize(
    "when",
    [
        {"cron": "0 3 * * *", "cron_offset": "Europe/Rome"},
        {"interval": timedelta(minutes=5)},
        {"time": datetime(2026, 1, 1, tzinfo=UTC)},
    ],
)
def test_a_schedule_comes_back_as_it_was_added(url: str, when: dict[str, Any]) -> None:
    async def test() -> None:
        async with source_of(url) as (_, source):
            await source.add_schedule(schedule(**when))
            assert await source.get_schedules() == [schedule(**when)]
            await source.delete_schedule("a")
            assert await source.get_schedules() == []

    run(test())


def test_several_schedulers_fire_a_turn_once(url: str) -> None:
    """Each has seen that it is due, and they send at the same time."""

    async def test() -> None:
        async with source_of(url) as (broker, source):
            schedulers = [TaskiqScheduler(broker, [source]) for _ in range(8)]
            await source.add_schedule(schedule(interval=3_600))
            await asyncio.gather(*(each.on_ready(source, schedule(interval=3_600)) for each in schedulers))
            assert (await counts(broker))["ready"] == 1
            await schedulers[0].on_ready(source, schedule(interval=3_600))
            assert (await counts(broker))["ready"] == 1

    run(test())


def test_a_scheduler_that_loses_the_race_puts_nothing() -> None:
    """It has looked before the other one has fired; its put looks again, in its transaction."""

    async def test() -> None:
        async with source_of("memory:") as (broker, source):
            minutely, other = schedule(cron="* * * * *"), TaskiqScheduler(broker, [source])
            await source.add_schedule(minutely)
            await source.pre_send(minutely)
            await asyncio.create_task(other.on_ready(source, minutely))
            assert (await counts(broker))["ready"] == 1
            message: Any = broker.firing._current.get()
            await message.put(await broker.database(), lambda _: pytest.fail("it was fired twice"))

    run(test())


def test_a_schedule_with_a_time_is_gone_after_its_firing() -> None:
    async def test() -> None:
        async with source_of("memory:") as (broker, source):
            once = schedule(time=datetime(2026, 1, 1, tzinfo=UTC))
            await source.add_schedule(once)
            for _ in range(2):
                await TaskiqScheduler(broker, [source]).on_ready(source, once)
            assert (await counts(broker))["ready"] == 1
            assert await source.get_schedules() == []

    run(test())


def test_a_deleted_schedule_is_not_fired() -> None:
    """A scheduler looks for changes once a minute, and knows it until then."""

    async def test() -> None:
        async with source_of("memory:") as (broker, source):
            await source.add_schedule(schedule(interval=1))
            await source.delete_schedule("a")
            await TaskiqScheduler(broker, [source]).on_ready(source, schedule(interval=1))
            assert (await counts(broker))["ready"] == 0

    run(test())


def test_a_message_of_the_program_is_none_of_a_firing() -> None:
    async def test() -> None:
        async with source_of("memory:") as (broker, source):

            @broker.task
            async def note(number: int) -> None: ...

            await source.add_schedule(schedule(interval=3_600))
            await source.pre_send(schedule(interval=3_600))
            await note.kiq(1)
            await note.kicker().schedule_by_interval(source, 60, 2)
            assert (await counts(broker))["ready"] == 1
            assert len(await source.get_schedules()) == 2

    run(test())


def test_a_schedule_is_added_in_a_transaction() -> None:
    async def test() -> None:
        async with source_of("memory:") as (broker, source):

            @aio.transactional
            async def both(tr: aio.Transaction, fails: bool) -> None:
                with broker.within(tr):
                    await source.add_schedule(schedule(interval=60))
                if fails:
                    raise KeyError

            with pytest.raises(KeyError):
                await both(await broker.database(), True)
            assert await source.get_schedules() == []
            await both(await broker.database(), False)
            assert len(await source.get_schedules()) == 1

    run(test())


def test_all_schedules_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with source_of("memory:") as (_, source):
            for number in range(5):
                added = schedule(interval=60)
                added.schedule_id = str(number)
                await source.add_schedule(added)
            assert [each.schedule_id for each in await source.get_schedules()] == list("01234")

    monkeypatch.setattr(broker, "READ_AT_ONCE", 2)
    run(test())


def test_a_schedule_that_cannot_be_read_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with source_of("memory:") as (broker, source):
            other = schedule(interval=60)
            other.schedule_id = "pickled"
            await FdbQueueScheduleSource(broker, serializer=PickleSerializer()).add_schedule(other)
            await source.add_schedule(schedule(interval=60))
            with caplog.at_level(logging.WARNING):
                assert len(await source.get_schedules()) == 1
            assert "the schedule pickled cannot be read" in caplog.text

    run(test())


def test_another_broker_is_told_to_the_scheduler() -> None:
    async def test() -> None:
        async with source_of("memory:") as (_, source):
            other = InMemoryBroker()
            other.register_task(lambda number: number, task_name="note")
            await source.add_schedule(schedule(interval=60))
            with pytest.raises(InvalidArgument, match="the one of its source"):
                await TaskiqScheduler(other, [source]).on_ready(source, schedule(interval=60))
            await other.shutdown()

    run(test())


def test_options_are_refused_at_once() -> None:
    async def test() -> None:
        async with source_of("memory:") as (_, source):
            with pytest.raises(InvalidArgument, match="one of cron, interval and time"):
                await source.add_schedule(schedule(interval=60, cron="* * * * *"))
            large = schedule(interval=60)
            large.args = ["x" * 200_000]
            with pytest.raises(PayloadTooLarge):
                await source.add_schedule(large)

    run(test())
    with pytest.raises(WrongType, match="broker"):
        FdbQueueScheduleSource(InMemoryBroker())  # type: ignore[arg-type]  # that is the point


def test_schedules_are_no_finding_of_verify(tmp_path: Any) -> None:
    async def test() -> None:
        async with source_of(f"embedded:{tmp_path}/data") as (broker, source):
            await source.add_schedule(schedule(interval=60))
            await TaskiqScheduler(broker, [source]).on_ready(source, schedule(interval=60))

    run(test())
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        assert fdbqueue.verify(db).findings == ()
