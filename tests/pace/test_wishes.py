"""Options of the transactions of one database, as its user gives them."""

import asyncio

import pytest

import fdbqueue
from fdbqueue import aio
from fdbqueue.core.database import public_url, run
from fdbqueue.core.errors import InvalidArgument, UnknownUrl
from fdbqueue.core.open import with_query
from fdbqueue.core.pace import Wishes, query_of, wishes_in
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.sessions.keeper import keeper_of
from fdbqueue.embedded import FDBError
from tests.pace.support import opened

EVERYTHING = Wishes(("reports", "night"), "batch", 2.5, 7)
BAD = [
    {"tags": "reports"},
    {"tags": [""]},
    {"tags": ["x" * 17]},
    {"tags": ["é" * 9]},
    {"tags": ["a"] * 6},
    {"tags": [7]},
    {"priority": "immediate"},
    {"transaction_timeout_s": -1},
    {"transaction_timeout_s": 0},
    {"transaction_timeout_s": "5"},
    {"transaction_retry_limit": -1},
    {"transaction_retry_limit": 1.5},
]


@pytest.mark.parametrize("options", BAD, ids=str)
def test_a_bad_option_is_refused_at_the_call(options):
    (name,) = options
    with pytest.raises(InvalidArgument, match=name):
        fdbqueue.open("memory:", **options)

    async def opens():
        await aio.open("memory:", **options)

    with pytest.raises(InvalidArgument, match=name):
        asyncio.run(opens())


@pytest.mark.parametrize(
    "query",
    ["color=red", "tag", "timeout=", "timeout=soon", "retry_limit=x", "priority=batch&priority=batch"],
)
def test_an_unknown_query_of_a_cluster_is_refused(query):
    with pytest.raises(UnknownUrl):
        wishes_in("fdb:", query)


@pytest.mark.parametrize("query", ["tag=", "timeout=-1", "retry_limit=-1", "priority=high"])
def test_a_bad_value_in_a_query_is_refused(query):
    with pytest.raises(InvalidArgument):
        wishes_in("fdb:", query)


def test_a_query_has_the_options_for_other_processes():
    assert wishes_in("fdb:", query_of(EVERYTHING)) == EVERYTHING
    url = with_query("fdb:/etc/fdb.cluster", EVERYTHING)
    assert url == "fdb:/etc/fdb.cluster?tag=reports&tag=night&priority=batch&timeout=2.5&retry_limit=7"
    assert public_url(url) == url
    with pytest.raises(InvalidArgument):
        with_query(url, EVERYTHING)


@pytest.mark.parametrize("durability", ["", "?durability=soon"])
def test_a_directory_keeps_its_options_in_its_url(tmp_path, durability):
    url = f"embedded:{tmp_path}/data{durability}"
    with fdbqueue.open(url, tags=["night"], transaction_retry_limit=7) as db:
        assert db.url == f"{url}{'&' if durability else '?'}tag=night&retry_limit=7"
        with fdbqueue.open(db.url, create=False) as other:
            assert other.wishes == db.wishes == Wishes(("night",), None, None, 7)
        with pytest.raises(InvalidArgument, match="url"):
            fdbqueue.open(db.url, tags=["day"])


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("timeout=soon", UnknownUrl),
        ("durability=soon&color=red", UnknownUrl),
        ("durability=soon&durability=soon", UnknownUrl),
        ("retry_limit=-1", InvalidArgument),
    ],
)
def test_a_bad_query_of_a_directory_makes_nothing(tmp_path, query, error):
    with pytest.raises(error):
        fdbqueue.open(f"embedded:{tmp_path}/data?{query}")
    assert not list(tmp_path.iterdir())


def test_a_directory_may_have_a_question_mark_in_its_name(tmp_path):
    with fdbqueue.open(f"embedded:{tmp_path}/what?", transaction_retry_limit=7) as db:
        assert db.url.endswith("/what??retry_limit=7")
    assert (tmp_path / "what?").is_dir()


def test_each_attempt_of_a_call_has_the_options():
    db, cluster, _ = opened(EVERYTHING)
    with db:
        cluster.failures = [1020]
        with cluster.watched() as seen:
            fdbqueue.Queue.named(db, "items").enqueue(db, 1)
    assert len(seen) > 2
    for one in seen:
        assert (one.priority, one.tags, one.timeout_ms, one.retry_limit) == (
            "batch",
            EVERYTHING.tags,
            2500,
            7,
        )


def test_heartbeats_and_renewals_have_none_of_the_options():
    db, cluster, _ = opened(EVERYTHING)
    with db:
        queue = fdbqueue.TaskQueue.create(db, "jobs", kind="fifottl")
        queue.put(db, "x")
        task = queue.take(db, timeout=0)
        with fdbqueue.Session(db) as session, cluster.watched() as seen:
            session.beat()
            queue.renew(db, [task])
    assert {(one.priority, one.tags, one.retry_limit) for one in seen} == {("default", (), -1)}


def test_the_renewals_of_a_worker_have_none_of_the_options():
    db, cluster, _ = opened(EVERYTHING)
    with db:
        queue = fdbqueue.TaskQueue.create(db, "jobs", kind="fifottl")
        queue.put(db, "x")
        seen = []

        def work(_):
            with cluster.watched() as commits:
                heartbeat = worker._heartbeat
                heartbeat._renew(queue, heartbeat.holds())
            seen.extend(commits)

        worker = fdbqueue.Worker(db, [queue], work)
        worker.run(until_empty=True)
    assert [(one.priority, one.tags, one.retry_limit) for one in seen] == [("default", (), -1)]


def test_a_transaction_of_the_caller_has_no_option():
    db, _, _ = opened(EVERYTHING)
    with db:
        assert db.create_transaction()._given == []


def test_upkeep_goes_on_without_tags_while_they_are_throttled():
    db, cluster, _ = opened(Wishes(("reports",)))
    with db:
        cluster.is_squeezed = True
        with cluster.watched() as seen:
            run(db.at("upkeep"), lambda tr: tr.set(b"x", b""))
    assert [(one.priority, one.tags) for one in seen] == [("default", ())]


def test_background_work_keeps_its_tags_at_default_priority():
    db, cluster, _ = opened(Wishes(("reports",)))
    with db:
        cluster.is_squeezed, cluster.failures = True, [1020]
        with cluster.watched() as seen:
            run(db.at("background"), lambda tr: tr.set(b"x", b""))
    assert [(one.priority, one.tags) for one in seen] == [("default", ("reports",))] * 2


def test_a_service_of_plain_upkeep_has_the_tags_of_calls():
    db, cluster, _ = opened(Wishes(("reports",), "default"))
    with db:
        queue = fdbqueue.Queue.named(db, "items")
        queue.enqueue(db.at("upkeep"), 1)
        with cluster.watched() as seen:
            queue.enqueue(db, 2)
    assert {one.tags for one in seen} == {("reports",)}


def test_default_priority_can_be_asked_for_all_work():
    db, cluster, _ = opened(Wishes(priority="default"))
    with db, fdbqueue.Session(db):
        keeper = keeper_of(db, RootKeys(DEFAULT_ROOT))
        with cluster.watched() as seen:
            keeper.tick()
            run(db.at("background"), lambda tr: tr.get(b"x").wait())
    assert {one.priority for one in seen} == {"default"}


def test_the_retry_limit_of_a_database_ends_a_call():
    db, cluster, _ = opened(Wishes(retry_limit=2))
    with db:
        cluster.failures = [1020] * 10
        with pytest.raises(FDBError):
            run(db, lambda tr: tr.set(b"x", b""))
    assert len(cluster.failures) == 10 - 3


def test_the_embedded_engine_has_the_limits_and_ignores_the_rest(tmp_path):
    options = {"tags": ["reports"], "priority": "batch", "transaction_timeout_s": 60.0}
    with fdbqueue.open(f"embedded:{tmp_path}/data", **options) as db:
        queue = fdbqueue.TaskQueue.create(db, "jobs")
        queue.put(db, "x")
        assert queue.ack(db, queue.take(db, timeout=0)).data == "x"


def test_the_asyncio_face_has_the_options():
    async def use():
        async with aio.open("memory:", transaction_retry_limit=0) as db:
            attempts = []

            @aio.transactional
            async def body(tr):
                attempts.append(tr)
                raise FDBError(1020)

            with pytest.raises(FDBError):
                await body(db)
            return len(attempts)

    assert asyncio.run(use()) == 1
