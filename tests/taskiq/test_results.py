"""Results and progress: they end by their ttl, and waits for them do not poll."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from taskiq import TaskiqResult, TaskiqResultTimeoutError
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress, TaskState
from taskiq.result_backends.dummy import DummyResultBackend
from taskiq.serializers import JSONSerializer, PickleSerializer

import fdbqueue
from fdbqueue.core.errors import InvalidArgument, PayloadTooLarge, UnknownUrl
from fdbqueue.integrations.common import Results
from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueResults
from fdbqueue.integrations.taskiq.results import ResultMissing
from tests.support import PATIENCE_S
from tests.taskiq.support import run, started, working


def result(value: Any, error: BaseException | None = None) -> TaskiqResult[Any]:
    return TaskiqResult(is_err=error is not None, return_value=value, execution_time=0.1, error=error)


@pytest.mark.parametrize("serializer", [None, JSONSerializer(), PickleSerializer()])
def test_a_result_comes_back_whole(serializer: TaskiqSerializer | None) -> None:
    async def test() -> None:
        backend = FdbQueueResults[Any]("memory:", serializer=serializer)
        await backend.startup()
        await backend.set_result("a", result({"large": "x" * 200_000}))
        await backend.set_result("b", result(None, ValueError("nought")))
        assert (await backend.get_result("a")).return_value == {"large": "x" * 200_000}
        assert repr((await backend.get_result("b")).error) == "ValueError('nought')"
        await backend.shutdown()

    run(test())


def test_json_has_no_times_but_a_result_may() -> None:
    async def test() -> None:
        at = datetime(2026, 1, 1, tzinfo=UTC)
        async with started("memory:") as broker:

            @broker.task
            async def when() -> datetime:
                return at

            async with working(broker):
                assert (await (await when.kiq()).wait_result(timeout=PATIENCE_S)).return_value == at

    run(test())


def test_a_result_has_a_time_to_live(monkeypatch: pytest.MonkeyPatch) -> None:
    ttls: list[Any] = []

    async def test() -> None:
        for backend in (FdbQueueResults("memory:"), FdbQueueResults("memory:", ttl_s=None)):
            await backend.set_result("a", result(1))
            await backend.set_progress("a", TaskProgress(state="half", meta=1))
            await backend.shutdown()

    monkeypatch.setattr(Results, "store", lambda *given: ttls.append(given[-1]))
    run(test())
    assert ttls == [86_400.0, 86_400.0, None, None]


def test_one_reader_gets_a_result_that_is_not_kept(tmp_path: Path) -> None:
    async def test() -> None:
        backend = FdbQueueResults(f"embedded:{tmp_path}/data", keep_results=False)
        await backend.set_result("a", result(1))
        assert await backend.is_result_ready("a")
        readers = [backend.get_result("a") for _ in range(10)]
        got = await asyncio.gather(*readers, return_exceptions=True)
        assert [one.return_value for one in got if isinstance(one, TaskiqResult)] == [1]
        with pytest.raises(ResultMissing, match="Task a has no result"):
            await backend.get_result("a")
        await backend.shutdown()

    run(test())


@pytest.mark.parametrize(("with_logs", "log"), [(False, None), (True, "what it said")])
def test_a_log_comes_with_its_result_if_asked_for(with_logs: bool, log: str | None) -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            sent = await note.kiq()
            said = result(1).model_copy(update={"log": "what it said"})
            await broker.result_backend.set_result(sent.task_id, said)
            assert (await broker.result_backend.get_result(sent.task_id, with_logs)).log == log
            assert (await sent.wait_result(timeout=PATIENCE_S, with_logs=with_logs)).log == log

    run(test())


def test_progress_is_told_and_read() -> None:
    async def test() -> None:
        backend = FdbQueueResults("memory:")
        assert await backend.get_progress("a") is None
        await backend.set_progress("a", TaskProgress(state=TaskState.STARTED, meta={"done": 3}))
        found = await backend.get_progress("a")
        assert found is not None
        assert (found.state, found.meta) == ("STARTED", {"done": 3})
        assert not await backend.is_result_ready("a")
        await backend.shutdown()

    run(test())


def test_a_wait_ends_with_the_result_and_polls_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            sent = await note.kiq()
            waits = asyncio.create_task(sent.wait_result(timeout=PATIENCE_S))
            await asyncio.sleep(0.01)
            await broker.result_backend.set_result(sent.task_id, result("came"))
            assert (await waits).return_value == "came"

    monkeypatch.setattr(FdbQueueResults, "is_result_ready", None)  # a poll would call it
    run(test())


def test_a_wait_without_a_result_times_out() -> None:
    async def test() -> None:
        async with started("memory:") as broker:

            @broker.task
            async def note() -> None: ...

            with pytest.raises(TaskiqResultTimeoutError):
                await (await note.kiq()).wait_result(timeout=0.01)

    run(test())


def test_a_wait_with_another_result_backend_is_that_of_taskiq() -> None:
    class Known(DummyResultBackend[Any]):
        async def is_result_ready(self, task_id: str) -> bool:  # noqa: ARG002
            return True

        async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:  # noqa: ARG002
            return result("known")

    async def test() -> None:
        async with started("memory:") as broker:
            broker.with_result_backend(Known())

            @broker.task
            async def note() -> None: ...

            assert (await (await note.kiq()).wait_result(timeout=PATIENCE_S)).return_value == "known"

    run(test())


def test_a_backend_uses_the_database_of_its_broker() -> None:
    async def test() -> None:
        broker = FdbQueueBroker("memory:")
        await FdbQueueResults(broker).set_result("a", result(1))
        backend = FdbQueueResults[Any](broker)
        await backend.shutdown()  # that of the broker stays open
        assert (await backend.get_result("a")).return_value == 1
        await broker.shutdown()

    run(test())


def test_a_result_that_is_too_large_is_refused() -> None:
    async def test() -> None:
        backend = FdbQueueResults("memory:")
        with pytest.raises(PayloadTooLarge):
            await backend.set_result("a", result("x" * 9_000_000))
        await backend.shutdown()

    run(test())


def test_options_are_refused_at_once() -> None:
    with pytest.raises(UnknownUrl):
        FdbQueueResults("redis://here")
    with pytest.raises(InvalidArgument, match="ttl_s"):
        FdbQueueResults("memory:", ttl_s=-1)


def test_results_are_no_finding_of_verify(tmp_path: Any) -> None:
    async def test() -> None:
        backend = FdbQueueResults(f"embedded:{tmp_path}/data")
        await backend.set_result("a", result("x" * 200_000))
        await backend.shutdown()

    run(test())
    with fdbqueue.open(f"embedded:{tmp_path}/data") as db:
        assert fdbqueue.verify(db).findings == ()
