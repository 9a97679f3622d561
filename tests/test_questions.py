"""The answers of docs/questions.md that state a fact about fdbqueue which no other test holds.

The others are in test_receipts.py (1020, 1021, 1039), tasks/test_large_batches.py (sizes),
fleet/test_leases.py (5 s, 10 MB), test_queue_line.py (refused watches), test_open.py and
celery/test_worker.py (forks, green pools), cluster/test_tls.py, cluster/test_restore.py, placement/ and
diagnosis/.
"""

import re
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, TaskQueue
from fdbqueue.core.binding import library_release
from fdbqueue.fleet.outcomes import Away, Failed, judge
from tests.conftest import CLUSTER_FILE
from tests.page import page
from tests.queue_support import FaultyEngine, faulty
from tests.support import (
    COMMIT_UNKNOWN,
    FUTURE_VERSION,
    NOT_COMMITTED,
    TIMED_OUT,
    TOO_OLD,
    Keys,
    becomes_ready,
    begin,
    commit_code,
    run_program,
    wait_until,
)

BEHIND, LOCKED, BATCH_THROTTLED, TAG_THROTTLED, HOT_SHARD = 1037, 1038, 1051, 1213, 1235
TRIED_AGAIN = [TOO_OLD, FUTURE_VERSION, NOT_COMMITTED, COMMIT_UNKNOWN]
TRIED_AGAIN += [BEHIND, LOCKED, BATCH_THROTTLED, TAG_THROTTLED]


@pytest.fixture
def queue(db: Database, space: Subspace) -> TaskQueue:
    return TaskQueue.create(db, "q", root=space)


@pytest.fixture
def faults(db: Database, fdb_module: ModuleType) -> tuple[Database, FaultyEngine]:
    return faulty(db, fdb_module.FDBError)


def fails_first(engine: FaultyEngine, code: int, done: bool = False) -> None:
    """The first commit ends with an error, `done` or not; later ones with none."""
    script = iter([(code, done)])
    engine.fate = lambda _: next(script, (0, True))


def ready(queue: TaskQueue, db: Database) -> int:
    found: int = queue.statistics(db)["tasks"]["ready"]
    return found


@pytest.mark.parametrize("code", TRIED_AGAIN)
def test_a_call_tries_again_by_itself(
    db: Database, faults: tuple[Database, FaultyEngine], queue: TaskQueue, code: int
) -> None:
    client, engine = faults
    fails_first(engine, code)
    queue.put(client, "a")
    assert (engine.commits, ready(queue, db)) == (2, 1)


@pytest.mark.parametrize("done", [True, False])
def test_a_timeout_ends_a_call_with_an_unknown_result(
    db: Database, faults: tuple[Database, FaultyEngine], queue: TaskQueue, fdb_module: ModuleType, done: bool
) -> None:
    client, engine = faults
    fails_first(engine, TIMED_OUT, done)
    with pytest.raises(fdb_module.FDBError) as raised:
        queue.put(client, "a")
    assert (raised.value.code, engine.commits, ready(queue, db)) == (TIMED_OUT, 1, done)


def test_a_hot_shard_is_tried_again_by_libraries_that_know_it(
    db: Database,
    engine: str,
    faults: tuple[Database, FaultyEngine],
    queue: TaskQueue,
    fdb_module: ModuleType,
) -> None:
    """Until 7.3, the number was that of another error, which never reaches a client."""
    client, faulty_engine = faults
    fails_first(faulty_engine, HOT_SHARD)
    if engine == "fdb" and tuple(map(int, library_release().split(".")[:2])) >= (7, 4):
        queue.put(client, "a")
    else:
        with pytest.raises(fdb_module.FDBError):
            queue.put(client, "a")
    assert ready(queue, db) == faulty_engine.commits - 1


@pytest.mark.parametrize("code", [*TRIED_AGAIN, TIMED_OUT, 1039, HOT_SHARD])
def test_a_handler_that_meets_a_squeezed_cluster_has_not_failed(code: int) -> None:
    """But for its own transaction, which was open for too long."""
    wanted = Failed if code == TOO_OLD else Away
    assert isinstance(judge(fdbqueue.embedded.FDBError(code), "me"), wanted)


@pytest.mark.parametrize("writes", [False, True])
def test_a_watch_conflicts_only_beside_a_write(db: Database, k: Keys, writes: bool) -> None:
    tr = begin(db)
    watch = tr.watch(k("bell"))
    if writes:
        tr[k("mine")] = b"1"
    db[k("bell")] = b"rung"
    assert commit_code(tr) == (NOT_COMMITTED if writes else 0)
    assert writes or becomes_ready(watch)


def take_until(db: Database, queue: TaskQueue, stop: Any) -> None:
    with pytest.raises(fdbqueue.WaitStopped):
        queue.take(db, 60, stop=stop)


def test_a_process_waits_with_two_watches_for_each_queue() -> None:
    with fdbqueue.open("memory:") as db:
        engine: Any = db.engine
        queues = [TaskQueue.create(db, name, partitions=parts) for name, parts in (("a", 1), ("b", 16))]
        stop = db.runtime.event()
        threads = [db.runtime.spawn(partial(take_until, db, queue, stop), "waits") for queue in queues * 5]
        wait_until(lambda: engine._watches >= 4 and db.counters.requests >= 2)
        assert engine._watches == 4
        stop.set()
        for thread in threads:
            thread.join()


def test_the_id_of_a_task_is_known_before_its_commit(db: Database, queue: TaskQueue, k: Keys) -> None:
    """With versionstamps, it would not be."""

    @fdbqueue.transactional
    def place(tr: Any) -> None:
        task = queue.put(tr, "mail")
        tr[k("order")] = task.id.encode()
        assert queue.peek(tr, task).data == "mail"

    place(db)
    assert bytes(db[k("order")]).decode() == queue.take(db).id


class Veiled:
    """Stands for a codec that encrypts."""

    def encode(self, value: object) -> bytes:
        return bytes(byte ^ 0x55 for byte in str(value).encode())

    def decode(self, payload: bytes) -> object:
        return bytes(byte ^ 0x55 for byte in payload).decode()


@pytest.fixture
def veiled(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("fdbqueue.core.codec._registered", {})
    fdbqueue.register_codec("veiled", Veiled())
    return "veiled"


def test_a_codec_hides_payloads_and_nothing_else(db: Database, space: Subspace, veiled: str) -> None:
    queue = TaskQueue.create(db, "q", "fair", codec=veiled, root=space)
    queue.put(db, "in the payload", key="in the key", headers={"at": "in the header"})
    stored = b"".join(row.key + row.value for row in db.get_range_startswith(space.key()))
    assert [word in stored for word in (b"in the payload", b"in the key", b"in the header")] == [0, 1, 1]
    assert queue.take(db).data == "in the payload"


GREEN = """
from gevent import joinall, monkey, spawn
monkey.patch_all(thread=False)
import fdbqueue

db = fdbqueue.open({url!r})
queue = fdbqueue.TaskQueue.create(db, {name!r})
work = lambda: [queue.put(db, 1), queue.ack(db, queue.take(db))]
joinall([spawn(work) for _ in range(3)], raise_error=True)
print(queue.statistics(db)["ends"]["acked"])
queue.drop(db)
db.close()
"""


def test_greenlets_use_a_queue_if_threads_are_unpatched(tmp_path: Path, url: str, space: Subspace) -> None:
    pytest.importorskip("gevent")
    assert run_program(tmp_path, GREEN.format(url=url, name=space.key().hex())).split() == ["3"]


TWO_THREADS = """
import os, re
import fdb.impl
library = re.search("/.*libfdb_c.*", open("/proc/self/maps").read())[0]
os.environ["FDB_NETWORK_OPTION_EXTERNAL_CLIENT_LIBRARY"] = library
os.environ["FDB_NETWORK_OPTION_CLIENT_THREADS_PER_VERSION"] = "2"
import fdbqueue

db = fdbqueue.open({url!r})
db.options.set_transaction_automatic_idempotency()
queue = fdbqueue.TaskQueue.create(db, {name!r})
queue.put(db, 1)
print(queue.ack(db, queue.take(db)).data)
names = [open(f"/proc/self/task/{{task}}/comm").read() for task in os.listdir("/proc/self/task")]
print(sum(name.startswith("fdb-") for name in names))
queue.drop(db)
"""


@pytest.mark.skipif(CLUSTER_FILE is None, reason="FDB_CLUSTER_FILE names no cluster")
def test_a_client_may_have_two_threads_and_automatic_idempotency(tmp_path: Path) -> None:
    program = TWO_THREADS.format(url=f"fdb:{CLUSTER_FILE}", name=tmp_path.name)
    assert run_program(tmp_path, program).split() == ["1", "2"]


ANSWERS = re.split(r"^### ", page("docs/questions.md"), flags=re.MULTILINE)[1:]
WORDS_OF_AN_ANSWER_MAX, WORDS_OF_THE_PAGE_MAX = 70, 2_600


@pytest.mark.parametrize("answer", ANSWERS, ids=lambda text: text.partition("\n")[0])
def test_an_answer_is_short_and_leads_on(answer: str) -> None:
    prose = re.sub(r"^(```|## ).*?(^```$|\Z)", "", answer.partition("\n")[2], flags=re.MULTILINE | re.DOTALL)
    assert len(prose.split()) <= WORDS_OF_AN_ANSWER_MAX
    assert re.search(r"\]\((?!https)", answer)


def test_the_page_of_questions_can_be_searched_by_eye() -> None:
    assert len(page("docs/questions.md").split()) <= WORDS_OF_THE_PAGE_MAX
