"""The backend: a task of Django is a task of a queue, and its result the state of that task."""

from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.test.utils import override_settings

import fdbqueue
import fdbqueue.integrations.django
from fdbqueue.integrations.django import api
from tests.django.conftest import tasks_setting
from tests.support import Keys


def status(result: Any) -> str:
    result.refresh()
    return str(result.status)


def test_the_backend_supports_all_that_django_asks_for(backend: Any) -> None:
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority


def test_a_new_result_is_ready_and_can_be_found(jobs: ModuleType, heard: list[Any]) -> None:
    result = jobs.add.enqueue(1, y=2)

    assert (str(result.status), result.args, result.kwargs) == ("READY", [1], {"y": 2})
    assert (result.attempts, result.errors, result.started_at, result.finished_at) == (0, [], None, None)
    assert abs(datetime.now(UTC) - result.enqueued_at) < timedelta(minutes=1)
    assert (result.task, result.backend) == (jobs.add, "default")
    assert jobs.add.get_result(result.id) == result
    assert heard == [("READY", result)]


def test_an_asynchronous_program_enqueues_and_looks(jobs: ModuleType) -> None:
    async def program() -> tuple[Any, Any]:
        result = await jobs.add_soon.aenqueue(1, 2)
        found = await jobs.add_soon.aget_result(result.id)
        await result.arefresh()
        return result, found

    result, found = async_to_sync(program)()

    assert result == found
    assert str(result.status) == "READY"


@pytest.mark.parametrize(
    "id_", ["", "x", "default:", "default:x", "other:" + 32 * "0", "default:" + 32 * "0"]
)
def test_an_unknown_id_has_no_result(backend: Any, jobs: ModuleType, id_: str) -> None:
    jobs.add.enqueue(1, 2)

    with pytest.raises(api.TaskResultDoesNotExist):
        backend.get_result(id_)


def test_a_look_makes_no_queue(backend: Any) -> None:
    with pytest.raises(api.TaskResultDoesNotExist):
        backend.get_result("mails:" + 32 * "0")

    with pytest.raises(fdbqueue.errors.QueueNotFound):
        backend.task_queues.there("mails")


def test_a_result_of_another_task_does_not_match(jobs: ModuleType) -> None:
    result = jobs.add.enqueue(1, 2)

    with pytest.raises(Exception, match="Task does not match"):
        jobs.note.get_result(result.id)


def test_arguments_are_values_of_json(jobs: ModuleType) -> None:
    with pytest.raises(TypeError):
        jobs.note.enqueue(object())

    assert jobs.note.enqueue((1, b"two")).args == [[1, "two"]]


def test_a_queue_that_is_not_in_the_settings_is_refused(jobs: ModuleType) -> None:
    with pytest.raises(Exception, match="Queue 'other' is not valid"):
        jobs.add.using(queue_name="other")


def test_a_priority_is_kept(jobs: ModuleType, backend: Any) -> None:
    for priority in (-100, 0, 100):
        result = jobs.add.using(priority=priority).enqueue(1, 2)
        assert backend.get_result(result.id).task.priority == priority


def test_a_task_waits_until_run_after(jobs: ModuleType, backend: Any, db: fdbqueue.Database) -> None:
    """In the database, as a delayed task."""
    at = datetime.now(UTC) + timedelta(hours=1)
    result = jobs.note.using(run_after=at).enqueue("late")

    queue = backend.task_queues.there("default")
    [task] = queue.tasks(db, "~", 10)
    assert (status(result), result.task.run_after) == ("READY", at)
    assert abs(task.until - at.timestamp()) < 1


def test_a_time_in_the_past_is_no_delay(jobs: ModuleType, backend: Any, db: fdbqueue.Database) -> None:
    jobs.note.using(run_after=datetime(2020, 1, 1, tzinfo=UTC)).enqueue("soon")

    assert backend.task_queues.there("default").statistics(db)["tasks"]["ready"] == 1


def test_without_use_tz_times_are_local(jobs: ModuleType) -> None:
    with override_settings(USE_TZ=False):
        at = datetime.now() + timedelta(hours=1)
        result = jobs.note.using(run_after=at).enqueue("late")
        result = jobs.note.get_result(result.id)

        assert result.task.run_after == at
        assert abs(datetime.now() - result.enqueued_at) < timedelta(minutes=1)


def test_a_task_goes_with_the_transaction(jobs: ModuleType, db: fdbqueue.Database, backend: Any) -> None:
    """Also the first one of its queue. Without a commit there is neither queue nor task."""

    def enqueue(tr: fdbqueue.Transaction) -> list[Any]:
        with fdbqueue.integrations.django.transaction(tr):
            return [jobs.mail.enqueue("ada"), jobs.mail.enqueue("bob")]

    lost = db.create_transaction()
    results = enqueue(lost)
    lost.cancel()
    with pytest.raises(api.TaskResultDoesNotExist):
        backend.get_result(results[0].id)

    results = fdbqueue.transactional(enqueue)(db)
    assert [status(result) for result in results] == ["READY", "READY"]
    more = fdbqueue.transactional(enqueue)(db)
    assert [status(result) for result in more] == ["READY", "READY"]


def test_a_task_outside_of_the_block_is_put_at_once(jobs: ModuleType, db: fdbqueue.Database) -> None:
    lost = db.create_transaction()
    with fdbqueue.integrations.django.transaction(lost):
        jobs.note.enqueue("lost")
    result = jobs.note.enqueue("stays")
    lost.cancel()

    assert status(result) == "READY"


def test_a_queue_that_was_dropped_is_made_again(
    jobs: ModuleType, db: fdbqueue.Database, backend: Any
) -> None:
    first = jobs.note.enqueue(1)
    queue = backend.task_queues.there("default")
    queue.drop(db)

    assert status(jobs.note.enqueue(2)) == "READY"
    with pytest.raises(api.TaskResultDoesNotExist):
        backend.get_result(first.id)


def test_an_operator_sees_the_call(jobs: ModuleType, db: fdbqueue.Database, backend: Any) -> None:
    jobs.mail.enqueue(to="ada")

    [task] = backend.task_queues.there("mails").tasks(db, "r", 10)
    assert task.data == {
        "task": "tests.django.jobs.mail",
        "args": [],
        "kwargs": {"to": "ada"},
        "priority": 20,
    }


def test_a_task_that_django_has_not_enqueued_has_no_result(
    jobs: ModuleType, db: fdbqueue.Database, backend: Any
) -> None:
    jobs.note.enqueue(1)
    queue = backend.task_queues.there("default")
    strange = queue.put(db, "strange", result_ttl=60)

    with pytest.raises(api.TaskResultDoesNotExist):
        backend.get_result(f"default:{strange.id}")
    queue.ack(db, queue.take(db), result="strange")
    queue.ack(db, queue.take(db), result="strange")
    with pytest.raises(api.TaskResultDoesNotExist):
        backend.get_result(f"default:{strange.id}")


@pytest.mark.parametrize(("kind", "codec", "word"), [("fifo", "json", "kind"), ("fifottl", "bytes", "codec")])
def test_a_queue_that_cannot_hold_tasks_is_refused(
    options: dict[str, Any], db: fdbqueue.Database, jobs: ModuleType, kind: str, codec: str, word: str
) -> None:
    fdbqueue.TaskQueue.create(db, f"{options['namespace']}.mails", kind, codec=codec)

    with pytest.raises(api.InvalidTaskBackend, match=f"{word}.*Django's tasks need"):
        jobs.mail.enqueue("ada")


def test_a_queue_with_partitions_serves(
    options: dict[str, Any], db: fdbqueue.Database, jobs: ModuleType
) -> None:
    name = f"{options['namespace']}.mails"
    fdbqueue.TaskQueue.create(db, name, "fifottl", codec="msgpack", partitions=4)

    assert status(jobs.mail.enqueue("ada")) == "READY"


def test_backends_of_one_namespace_share_their_tasks(options: dict[str, Any], jobs: ModuleType) -> None:
    other = tasks_setting(options) | {"other": tasks_setting(options)["default"]}
    with override_settings(TASKS=other):
        result = jobs.add.using(backend="other").enqueue(1, 2)

        assert result.backend == "other"
        assert jobs.add.get_result(result.id).task == jobs.add


def test_the_database_of_a_backend_is_the_program_s(jobs: ModuleType, db: fdbqueue.Database, k: Keys) -> None:
    with fdbqueue.integrations.django.database() as database:
        assert database.engine is db.engine
    assert not db.closed

    @fdbqueue.transactional
    def order(tr: fdbqueue.Transaction) -> Any:
        tr[k("order")] = b"an order"
        with fdbqueue.integrations.django.transaction(tr):
            return jobs.note.enqueue("order")

    assert status(order(fdbqueue.integrations.django.database())) == "READY"
    assert bytes(db[k("order")]) == b"an order"
