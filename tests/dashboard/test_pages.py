"""Each page tells its part of the state, escapes all data, and answers for things that do not exist."""

import pytest

from fdbqueue import Backoff, Queue, TaskQueue
from fdbqueue.core.registry import Registry
from tests.dashboard.conftest import HOSTILE, NAME, Served
from tests.dashboard.support import path_of


def test_the_list_has_each_queue_with_its_counts(served: Served) -> None:
    page = served.reader.said("/")
    assert "2 queues" in page
    assert f"{NAME} utubettl Buried 1 1 1 1" in page
    assert "1 item without leases" in page


def test_a_queue_shows_the_tasks_of_each_state(served: Served) -> None:
    for state in ("ready", "taken", "delayed", "buried", "ended"):
        page = served.reader.get(path_of(NAME) + f"?state={state}")
        listed = [
            name for name, id_ in served.ids.items() if f"/tasks/{id_}" in page.partition('id="keys"')[0]
        ]
        assert listed == [state]


def test_a_queue_of_items_tells_its_partitions(served: Served) -> None:
    queue = Queue.named(served.db, "parted", partitions=4)
    queue.enqueue_many(served.db, [1, 2, 3])
    assert "Items 3 Partitions 4 Items in the fullest 3" in served.reader.said("/queues/parted")
    assert "Partitions" not in served.reader.said("/queues/plain")
    Registry().drop(served.db, "parted")


def test_pages_of_tasks_follow_each_other(served: Served) -> None:
    queue = TaskQueue.create(served.db, "long", "fifo")
    queue.put_many(served.db, range(70))
    first = served.reader.get("/queues/long")
    assert first.count("/queues/long/tasks/") == 50
    place = first.partition("after=")[2].partition('"')[0]
    second = served.reader.get(f"/queues/long?state=ready&after={place}")
    assert second.count("/queues/long/tasks/") == 20
    assert "after=" not in second.partition('id="tasks"')[2].partition('id="line"')[0]
    queue.drop(served.db)


def test_a_task_tells_its_unique_key(served: Served) -> None:
    queue = TaskQueue.create(served.db, "unique", "fifo")
    task = queue.put(served.db, "x", unique=HOSTILE)
    page = served.reader.get(f"/queues/unique/tasks/{task.id}")
    assert "<dt>Unique</dt>" in page
    assert HOSTILE not in page
    other = queue.put(served.db, "y")
    assert "Unique" not in served.reader.get(f"/queues/unique/tasks/{other.id}")
    queue.drop(served.db)


def test_a_task_tells_its_steps_that_are_done(served: Served) -> None:
    queue = TaskQueue.create(served.db, "stepped", "fifo")
    queue.put(served.db, "x")
    task = queue.take(served.db, 0)
    assert task is not None
    path = f"/queues/stepped/tasks/{task.id}"
    assert "Steps that are done" not in served.reader.get(path)
    for name in ("charge", HOSTILE):
        queue.step(served.db, task, name, lambda: None)
    page = served.reader.get(path)
    assert HOSTILE not in page
    assert "<li" in page.partition("Steps that are done")[2]
    assert "charge" in page
    queue.ack(served.db, task)
    queue.drop(served.db)


def test_a_task_tells_its_life(served: Served) -> None:
    said = {
        "ready": "No worker takes from the queue",
        "taken": "told 40%",
        "delayed": "It is due in 60 s",
        "buried": "Traceback",
        "ended": "Acked",
    }
    for name, text in said.items():
        assert text in served.reader.said(path_of(NAME, "tasks", served.ids[name]))


def test_dead_letters_are_told_by_class(served: Served) -> None:
    page = served.reader.said(path_of(NAME, "dead"))
    assert "ValueError 1" in page
    assert served.ids["buried"] in served.reader.get(path_of(NAME, "dead") + "?error=ValueError")
    for query in ("error=KeyError", "text=nowhere"):
        assert "No buried task matches" in served.reader.said(f"{path_of(NAME, 'dead')}?{query}")


def test_a_queue_without_leases_has_a_page(served: Served) -> None:
    assert "Items 1" in served.reader.said("/queues/plain")
    assert "is of kind queue" in served.reader.said("/queues/plain/dead", 404)


def test_no_data_reaches_a_page_unescaped(served: Served) -> None:
    pages = ["/", path_of(NAME), path_of(NAME, "dead"), f"{path_of(NAME)}?state=taken"]
    pages += [path_of(NAME, "tasks", id_) for id_ in served.ids.values()]
    for page in pages:
        found = served.writer.get(page)
        assert "<script>a" not in found
        assert not set("\x1b\u202e") & set(found)
        assert "<i>" not in found
    assert HOSTILE[:8] in served.reader.said(path_of(NAME, "tasks", served.ids["buried"]))


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nothing", 404, "no such page"),
        ("/queues/nothing", 404, "no queue named 'nothing'"),
        ("/queues/nothing/dead", 404, "no queue named"),
        ("/queues/nothing/tasks/x", 404, "no queue named"),
        ("/queues/a/b", 405, "does not take that method"),
        (path_of(NAME) + "?state=lost", 400, "state must be one of ready, taken"),
        (path_of(NAME) + "?after=x", 400, "after must be"),
        (path_of(NAME, "tasks", "x"), 400, "task must be"),
        (path_of(NAME, "tasks", "0" * 32), 404, "There is no task"),
        (path_of(NAME, "dead") + "?after=00", 400, "after must be"),
        (path_of("x" * 501), 400, "name must be"),
    ],
)
def test_unknown_things_get_a_sentence(served: Served, path: str, status: int, said: str) -> None:
    page = served.reader.said(path, status)
    assert said in page
    assert "Traceback" not in page


def test_large_and_odd_payloads_are_bounded(served: Served) -> None:
    db = served.db
    texts = TaskQueue.create(db, "texts", "fifo")
    raw = TaskQueue.create(db, "raw", "fifo", codec="bytes")
    large = texts.put(db, "<b>" * 1_000_000).id
    assert len(served.reader.get(path_of("texts"))) < 10_000
    page = served.reader.get(path_of("texts", "tasks", large))
    assert "json, cut" in page
    assert len(page) < 300_000
    for data, form in ((b"\xff\x00" * 99, "bytes"), (b"plain\x1b", "text"), (b"", "text")):
        page = served.reader.said(path_of("raw", "tasks", raw.put(db, data).id))
        assert f"Data {form}" in page
    for queue in (texts, raw):
        queue.drop(db)


def test_a_payload_that_cannot_be_read_is_told(served: Served) -> None:
    queue = TaskQueue.create(served.db, "typed", "fifo", codec="json")
    id_ = queue.put(served.db, "x").id
    prefix = queue.contents.key()
    for key, value in served.db[prefix : prefix + b"\xff"]:
        if b'"x"' in value:
            served.db[key] = value.replace(b'"x"', b'"x}')
    assert "unreadable" in served.reader.said(path_of("typed", "tasks", id_))
    assert served.reader.get(path_of("typed"))
    queue.drop(served.db)


def test_a_queue_that_this_release_cannot_read_is_told(served: Served) -> None:
    Registry().create(served.db, "newer", "kind-of-2040", {})
    assert "does not know the kind" in served.reader.said("/queues/newer")
    served.clock.advance(60)
    assert "does not know the kind" in served.reader.said("/")
    Registry().drop(served.db, "newer")


def test_rates_come_from_the_counters(served: Served) -> None:
    queue = TaskQueue.create(served.db, "rated", "fifo")
    served.clock.advance(60)
    served.reader.get("/")
    queue.put_many(served.db, range(20))
    served.clock.advance(10)
    listed = served.reader.said("/").partition("rated fifo")[2]
    assert "20 0 0 0 10s 2.0 0" in listed
    queue.drop(served.db)


def test_a_task_tells_the_attempts_in_force_and_their_source(served: Served) -> None:
    queue = TaskQueue.create(served.db, "counted", attempts=3, backoff=Backoff(1.5))
    own, none = queue.put(served.db, 1, attempts=float("inf")).id, queue.put(served.db, 2).id
    plain = TaskQueue.create(served.db, "without")
    TaskQueue.create(served.db, "uncounted", attempts=float("inf"))
    for path, told in (
        (f"/queues/counted/tasks/{own}", "of inf, by its put"),
        (f"/queues/counted/tasks/{none}", "of 3, by its queue"),
        (f"/queues/without/tasks/{plain.put(served.db, 3).id}", "of those of its worker"),
        ("/queues/counted", "attempts 3"),
        ("/queues/uncounted", "attempts inf"),
    ):
        assert told in served.reader.said(path)
    for name in ("counted", "uncounted", "without"):
        TaskQueue.open(served.db, name).drop(served.db)


def test_a_queue_tells_its_options_in_force_and_their_changes(served: Served) -> None:
    """The dashboard has opened the queue before the change."""
    queue = TaskQueue.create(served.db, "changing", "limfifottl", capacity=10)
    assert "UTC: capacity" not in served.reader.said("/queues/changing")
    queue.alter(served.db, capacity=5000, ttr=90)
    page = served.reader.said("/queues/changing")
    assert "capacity 5000" in page
    assert "UTC: capacity from 10 to 5000, by" in page
    assert "UTC: ttr from null to 90.0, by" in page
    queue.drop(served.db)
