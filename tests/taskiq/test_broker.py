"""The broker: messages as tasks, with their labels, their transactions and their ends."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from taskiq import AckableMessage, BrokerMessage, SimpleRetryMiddleware, TaskiqDepends
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver
from taskiq.serializers import PickleSerializer

import fdbqueue
from fdbqueue import aio
from fdbqueue.aio import TaskQueue
from fdbqueue.core.errors import InvalidArgument, StorageReplaced, UnknownUrl, WrongFace
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.integrations.taskiq import FdbQueueBroker
from fdbqueue.integrations.taskiq.broker import Intake, Leased
from fdbqueue.integrations.taskiq.results import put_options
from tests.support import PATIENCE_S
from tests.taskiq.support import counts, run, started, working


def test_a_message_runs_and_its_result_comes_back(url: str) -> None:
    async def test() -> None:
        async with started(url) as broker:

            @broker.task
            async def add(one: int, two: int) -> int:
                return one + two

            async with working(broker):
                sent = [await add.kiq(number, 1) for number in range(20)]
                values = [(await each.wait_result(timeout=PATIENCE_S)).return_value for each in sent]
            assert values == list(range(1, 21))
            assert await counts(broker) == await counts(broker) | {"ready": 0, "taken": 0, "buried": 0}

    run(test())


def test_a_delayed_message_waits_in_the_database() -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            await note.kicker().with_labels(delay=0.2).kiq()
            assert (await counts(broker))["delayed"] == 1
            async with working(broker):
                await (await note.kicker().with_labels(delay=0.1).kiq()).wait_result(timeout=PATIENCE_S)

    run(test())


@pytest.mark.parametrize(("kind", "codec"), [("fifo", "bytes"), ("fifottl", "json")])
def test_a_queue_of_another_kind_or_codec_is_refused(kind: str, codec: str) -> None:
    """An operator may have made it, with the wrong options."""

    async def test() -> None:
        async with started("memory:") as broker:
            name = (await broker.task_queue("other")).name.replace("other", "mails")
            await TaskQueue.create(await broker.database(), name, kind, codec=codec)
            with pytest.raises(fdbqueue.QueueExists, match="asked for was"):
                await broker.task_queue("mails")

    run(test())


def test_the_highest_priority_comes_first() -> None:
    async def test() -> None:
        async with started("memory:", batch=1) as broker:
            ran: list[int] = []

            @broker.task
            async def note(number: int) -> None:
                ran.append(number)

            sent = [await note.kicker().with_labels(priority=each).kiq(each) for each in (1, 9, 0, 5)]
            async with working(broker, max_async_tasks=1):
                for each in sent:
                    await each.wait_result(timeout=PATIENCE_S)
            assert ran == [9, 5, 1, 0]

    run(test())


def test_a_label_chooses_the_queue_and_a_worker_listens_to_it() -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task(queue_name="mails")
            async def mail() -> str:
                return "mailed"

            @broker.task
            async def note() -> str:
                return "noted"

            sent = [await mail.kiq(), await note.kiq()]
            assert (await counts(broker, "mails"))["ready"] == 1
            async with working(broker):
                sent += [await mail.kiq(), await note.kiq()]
                values = [(await each.wait_result(timeout=PATIENCE_S)).return_value for each in sent]
            assert values == ["mailed", "noted", "mailed", "noted"]

    run(test())


def test_a_worker_of_some_queues_leaves_the_others() -> None:
    async def test() -> None:
        async with started("memory:", queues=["mails"]) as broker:

            @broker.task
            async def note() -> None: ...

            @broker.task(queue_name="mails")
            async def mail() -> None: ...

            await note.kiq()
            async with working(broker):
                await (await mail.kiq()).wait_result(timeout=PATIENCE_S)
            assert (await counts(broker))["ready"] == 1

    run(test())


def test_a_message_is_there_with_its_transaction(url: str) -> None:
    async def test() -> None:
        async with started(url) as broker:
            db, key = await broker.database(), DEFAULT_ROOT.pack(("ran", broker._queues._namespace))

            @broker.task
            async def note() -> None: ...

            @aio.transactional
            async def both(tr: aio.Transaction, fails: bool) -> None:
                tr[key] = b"1"
                with broker.within(tr):
                    await note.kiq()
                if fails:
                    raise KeyError

            with pytest.raises(KeyError):
                await both(db, True)
            assert (await counts(broker))["ready"] == 0
            await both(db, False)
            assert (await counts(broker))["ready"] == 1
            assert await db.get(key) == b"1"

    run(test())


def test_an_error_of_the_transaction_reaches_its_retry_loop() -> None:
    """Taskiq wraps errors of a send: the loop would not know that it has to run the body again."""

    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            @aio.transactional
            async def twice(tr: aio.Transaction) -> int:
                nonlocal runs
                runs += 1
                with broker.within(tr):
                    if runs == 1:
                        raise SendTaskError from fdbqueue.embedded.FDBError(1020)
                    await note.kiq()
                return runs

            runs = 0
            async with await broker.database() as database:  # which does not close it
                assert await twice(database) == 2
            assert (await counts(broker))["ready"] == 1

    run(test())


def test_a_block_wants_an_awaited_transaction() -> None:
    async def test() -> None:
        async with started("memory:") as broker:
            db = await broker.database()
            for given, error in ((db, InvalidArgument), (db.blocking.create_transaction(), WrongFace)):
                with pytest.raises(error), broker.within(given):  # type: ignore[arg-type]  # that is the point
                    pass

    run(test())


def test_a_message_that_cannot_be_read_is_buried() -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            await broker.kick(BrokerMessage(task_id="a", task_name="b", message=b"no JSON", labels={}))
            async with working(broker):
                await (await note.kiq()).wait_result(timeout=PATIENCE_S)
            assert (await counts(broker))["buried"] == 1
            queue, db = await broker.task_queue(), await broker.database()
            buried = (await queue.tasks(db, fdbqueue.TaskState.BURIED, 10))[0]
            assert [failure.error for failure in await queue.failures(db, buried.id)] == ["JSONDecodeError"]

    run(test())


def test_a_message_of_an_unknown_task_is_buried() -> None:
    async def test() -> None:
        async with started("memory:") as sender, started(await sender.database()) as broker:
            broker._queues = sender._queues

            @sender.task
            async def unknown() -> None: ...

            @broker.task
            async def note() -> None: ...

            await unknown.kiq()
            async with working(broker):
                await (await note.kiq()).wait_result(timeout=PATIENCE_S)
            assert (await counts(broker))["buried"] == 1

    run(test())


def test_a_message_whose_workers_die_is_buried_in_the_end() -> None:
    async def test() -> None:
        async with started("memory:", orphaned_max=3) as broker:

            @broker.task
            async def kill() -> None: ...

            await kill.kiq()
            queue, db = await broker.task_queue(), await broker.database()
            task = await queue.take(db, 0)
            assert task is not None
            assert await broker._delivery.begins(db, Leased(queue, replace(task, orphaned=2)))
            assert not await broker._delivery.begins(db, Leased(queue, replace(task, orphaned=3)))
            assert (await counts(broker))["buried"] == 1

    run(test())


def test_one_suspect_runs_at_a_time() -> None:
    """Of the messages of a worker that has died, one may have killed it: the others do not share its end."""

    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            for _ in range(3):
                await note.kiq()
            queue, db = await broker.task_queue(), await broker.database()
            taken = await queue.take_many(db, 3)
            first, second, other = [Leased(queue, replace(task, orphaned=1)) for task in taken]
            fresh = Leased(queue, taken[2])
            begins = broker._delivery.begins
            assert [await begins(db, each) for each in (first, second, fresh)] == [True, False, True]
            assert (await counts(broker))["delayed"] == 1
            await broker._delivery.ack(db, first)
            assert await begins(db, other)

    run(test())


def test_a_worker_holds_no_other_message_as_a_suspect_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """If it kills the worker, the others would have lost their worker, too."""
    fetch = Intake._fetch

    async def take_suspects(self: Intake, *given: Any) -> None:
        await fetch(self, *given)
        for _ in range(len(self._held)):
            leased = self._held.popleft()
            self._held.append(Leased(leased.queue, replace(leased.task, orphaned=1)))

    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            for _ in range(3):
                await note.kiq()
            messages = broker.listen()
            first: Any = await anext(messages)
            assert await counts(broker) == await counts(broker) | {"taken": 1, "ready": 2}
            second = asyncio.ensure_future(anext(messages))
            assert await asyncio.wait({second}, timeout=0.05) == (set(), {second})
            await first.ack()
            await second
            await messages.aclose()

    monkeypatch.setattr(Intake, "_fetch", take_suspects)
    run(test())


def test_a_listener_gives_back_unasked_messages() -> None:
    """The one that was asked for stays with its worker until the broker shuts down."""

    async def test() -> None:
        async with aio.open("memory:") as db:
            async with started(db) as broker:

                @broker.task
                async def note() -> None: ...

                for _ in range(5):
                    await note.kiq()
                messages = broker.listen()
                assert isinstance(await anext(messages), AckableMessage)
                assert (await counts(broker))["taken"] == 5
                await messages.aclose()
                assert await counts(broker) == await counts(broker) | {"taken": 1, "ready": 4}
                queue = await broker.task_queue()
            assert (await queue.statistics(db))["tasks"]["ready"] == 5

    run(test())


def test_an_ended_session_is_no_error_of_a_listener_at_its_end() -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            for _ in range(2):
                await note.kiq()
            messages = broker.listen()
            await anext(messages)
            assert broker._session is not None
            await broker._session.end()
            await messages.aclose()
            assert (await counts(broker))["ready"] == 2

    run(test())


@pytest.mark.slow
def test_a_task_may_run_for_longer_than_the_ttr_of_its_session() -> None:
    async def test() -> None:
        async with started("memory:", session_ttr_s=2) as broker:
            runs = 0

            @broker.task
            async def slow() -> int:
                nonlocal runs
                runs += 1
                await asyncio.sleep(7)
                return runs

            async with working(broker):
                assert (await (await slow.kiq()).wait_result(timeout=PATIENCE_S)).return_value == 1

    run(test())


def test_a_late_ack_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            await note.kiq()
            message: Any = await anext(broker.listen())
            assert broker._session is not None
            await broker._session.end()
            with caplog.at_level(logging.WARNING):
                await message.ack()
            assert "was over before its end" in caplog.text
            assert (await counts(broker))["ready"] == 1

    run(test())


def test_a_worker_goes_on_after_the_end_of_its_session() -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> str:
                return "noted"

            async with working(broker):
                await (await note.kiq()).wait_result(timeout=PATIENCE_S)
                assert broker._session is not None
                await broker._session.end()
                sent = await note.kiq()
                assert (await sent.wait_result(timeout=PATIENCE_S)).return_value == "noted"

    run(test())


def test_an_outage_of_the_database_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its ack, the worker would hold the message until its end."""
    fails = {"take_many": 1, "ack": 1}

    def sometimes(name: str) -> Any:
        healthy = getattr(fdbqueue.TaskQueue, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if fails[name]:
                fails[name] -= 1
                raise fdbqueue.embedded.FDBError(1031)  # the database has not answered in time
            return healthy(*args, **kwargs)

        return call

    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            async with working(broker):
                await (await note.kiq()).wait_result(timeout=PATIENCE_S)
            assert fails == {"take_many": 0, "ack": 0}
            assert await counts(broker) == await counts(broker) | {"ready": 0, "taken": 0}

    for name in fails:
        monkeypatch.setattr(fdbqueue.TaskQueue, name, sometimes(name))
    monkeypatch.setattr("fdbqueue.integrations.taskiq.broker.AWAY_S", 0.01)
    monkeypatch.setattr("fdbqueue.integrations.taskiq.broker.AWAY_S", 0.01)
    run(test())


def test_a_listener_ends_when_its_directory_is_replaced(tmp_path: Path) -> None:
    """Taskiq starts another process then. This one would meet the error for ever."""

    async def test() -> None:
        async with started(f"embedded:{tmp_path}/data") as broker:

            @broker.task
            async def note() -> None: ...

            await note.kiq()
            messages = broker.listen()
            await anext(messages)
            (tmp_path / "data").rename(tmp_path / "elsewhere")
            with pytest.raises(StorageReplaced):
                await anext(messages)

    run(test())


def test_a_queue_that_was_dropped_is_made_again() -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            await note.kiq()
            await (await broker.task_queue()).drop(await broker.database())
            await note.kiq()
            assert (await counts(broker))["ready"] == 1

    run(test())


def test_the_middleware_of_taskiq_retries() -> None:
    async def test() -> None:
        async with started("memory:") as broker:
            broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))
            runs = 0

            @broker.task(retry_on_error=True)
            async def twice() -> int:
                nonlocal runs
                runs += 1
                if runs < 3:
                    raise ValueError
                return runs

            async with working(broker):
                result = await (await twice.kiq()).wait_result(timeout=PATIENCE_S)
            assert result.return_value == 3

    run(test())


def test_a_serializer_of_the_program_carries_the_messages() -> None:
    async def test() -> None:
        async with started("memory:") as broker:
            broker.with_serializer(PickleSerializer())

            @broker.task
            async def size(given: Any) -> int:
                return len(given)

            async with working(broker):
                sent = await size.kiq("é\n")
                assert (await sent.wait_result(timeout=PATIENCE_S)).return_value == 2

    run(test())


@pytest.mark.parametrize(
    "labels", [{"delay": "soon"}, {"priority": 256}, {"priority": "1.5"}, {"delay": "nan"}]
)
def test_a_label_that_is_no_such_number_is_refused(labels: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{next(iter(labels))} must be"):
        put_options(BrokerMessage(task_id="a", task_name="b", message=b"", labels=labels))


@pytest.mark.parametrize("options", [{"url": "redis://here"}, {"url": "embedded:"}])
def test_a_url_that_names_no_database_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(UnknownUrl):
        FdbQueueBroker(**options)


@pytest.mark.parametrize("options", [{"queues": []}, {"queues": "mails"}, {"batch": 0}, {"orphaned_max": 0}])
def test_other_options_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        FdbQueueBroker("memory:", **options)


def test_a_broker_works_on_one_loop_after_another(tmp_path: Any) -> None:
    broker = FdbQueueBroker(f"embedded:{tmp_path}/data")

    async def used() -> int:
        await broker.startup()
        try:
            await broker.kick(BrokerMessage(task_id="a", task_name="b", message=b"", labels={}))
            return (await counts(broker))["ready"]
        finally:
            await broker.shutdown()

    assert [asyncio.run(used()), asyncio.run(used())] == [1, 2]


def test_an_opening_that_failed_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        broker = FdbQueueBroker()
        monkeypatch.setenv("FDBQUEUE_URL", "nowhere")
        with pytest.raises(UnknownUrl):
            await broker.startup()
        monkeypatch.setenv("FDBQUEUE_URL", "memory:")
        first, second = await asyncio.gather(broker.database(), broker.database())
        assert first.blocking.engine is second.blocking.engine
        await broker.shutdown()

    run(test())


def test_a_task_acks_its_message_itself() -> None:
    """Acks of the kind "manual" are the task's own."""
    from taskiq import Context

    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task(ack_type="manual")
            async def ack(context: Context = TaskiqDepends()) -> None:  # noqa: B008  # as Taskiq's users write it
                await context.ack()

            async with working(broker):
                await (await ack.kiq()).wait_result(timeout=PATIENCE_S)
            assert (await counts(broker))["taken"] == 0

    run(test())


def test_receivers_of_one_loop_share_the_work() -> None:
    async def test() -> None:
        async with started("memory:", batch=1) as broker:

            @broker.task
            async def note(number: int) -> int:
                return number

            finish = asyncio.Event()
            receivers = [Receiver(broker, run_startup=False, max_async_tasks=2) for _ in range(3)]
            listening = [asyncio.create_task(each.listen(finish)) for each in receivers]
            sent = [await note.kiq(number) for number in range(12)]
            values = [(await each.wait_result(timeout=PATIENCE_S)).return_value for each in sent]
            finish.set()
            await asyncio.gather(*listening)
            assert values == list(range(12))

    run(test())
