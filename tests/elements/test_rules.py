"""elements.md, sections 1 to 6: every rule of the element queue, on every engine."""

import re
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue import Database, ElementQueue, transactional
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import (
    CannotLock,
    ElementNotFound,
    ElementNotLocked,
    FdbQueueError,
    InvalidArgument,
    InvalidElement,
    InvalidElementName,
    InvalidSchema,
    NotADatabase,
    PayloadTooLarge,
    QueueDropped,
    QueueError,
    QueueKindMismatch,
    QueueLockError,
    QueueNotFound,
    UnknownSchema,
    UnreadableElement,
)
from fdbqueue.core.registry import Registry
from fdbqueue.queues.elements.store import following, name_at
from tests.elements.support import (
    MALFORMED,
    NOBODY,
    SCHEMA,
    element_queue,
    filled,
    stored,
)
from tests.support import ManualClock, commit_code

NAME = re.compile(r"[0-9a-f]{8}/[0-9a-f]{14}")


@pytest.fixture
def q(space: Subspace) -> ElementQueue:
    return element_queue(space)


# -- 1: concepts ----------------------------------------------------------------------------------------


def test_a_name_has_eight_digits_a_slash_and_fourteen(db: Database, q: ElementQueue) -> None:
    name = q.add(db, {"body": "x"})
    assert NAME.fullmatch(name)
    seconds = int(name[9:17], 16)
    assert abs(seconds - db.runtime.now()) < 60
    assert int(name[17:22], 16) < 1_000_000


@pytest.mark.parametrize(("rndhex", "digit"), [(37, "5"), (0, "0"), (15, "f"), (-1, "f")])
def test_rndhex_is_the_last_digit(db: Database, space: Subspace, rndhex: int, digit: str) -> None:
    assert element_queue(space, rndhex=rndhex).add(db, {"body": "x"})[-1] == digit


def test_without_rndhex_an_object_chooses_a_digit(db: Database, space: Subspace) -> None:
    names = [element_queue(space).add(db, {"body": "x"}) for _ in range(100)]
    assert len({name[-1] for name in names}) > 8
    q = element_queue(space)
    assert len({q.add(db, {"body": "x"})[-1] for _ in range(10)}) == 1


@pytest.mark.commits_by_hand
def test_a_name_that_is_taken_becomes_the_next_microsecond(db: Database, space: Subspace) -> None:
    q = element_queue(space, rndhex=3)

    def three(tr: Any) -> list[str]:
        return [q.store.add(tr, NOBODY, b"\x80") for _ in range(3)]

    assert run(db, three) == ["00000000/5f000000000000", "00000000/5f000000000010", "00000000/5f000000000020"]


def test_after_the_last_microsecond_comes_the_next_second() -> None:
    last = name_at(1_600_000_000_999_999, 7)
    assert following(last)[9:] == name_at(1_600_000_001_000_000, 7)[9:]
    assert following(last) > last


def test_the_names_of_an_object_only_grow_on_any_clock(db: Database, q: ElementQueue) -> None:
    clock = ManualClock()
    with Database(db.engine, clock) as clocked:
        names = []
        for seconds in (0, 0, -5, 0, 10, -1):
            clock.advance(seconds)
            names.append(q.add(clocked, {"body": "x"}))
            q.dequeue(clocked, names[-1])
    assert names == sorted(set(names))


def test_names_of_all_times_sort_by_time() -> None:
    times = [0, 1, 999_999, 1_000_000, 59_999_999, 60_000_000, 1_600_000_000_000_000, 2**32 * 10**6 - 1]
    names = [name_at(time, 15 - number) for number, time in enumerate(times)]
    assert names == sorted(names)
    assert all(NAME.fullmatch(name) for name in names)


# -- 2: constructor and schema --------------------------------------------------------------------------


@pytest.mark.parametrize("subspace", [None, 1, "text", b"bytes", ["list"]])
def test_a_queue_lives_in_a_subspace(subspace: Any) -> None:
    with pytest.raises(TypeError):
        ElementQueue(subspace)


@pytest.mark.parametrize(
    "wrong", [{"maxelts": "2"}, {"maxelts": 2.0}, {"maxelts": None}, {"rndhex": "a"}, {"umask": "022"}]
)
def test_arguments_of_the_wrong_type_are_a_type_error(space: Subspace, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"'{next(iter(wrong))}'"):
        element_queue(space, **wrong)


def test_id_and_path_are_the_queues(space: Subspace) -> None:
    one, other = element_queue(space), element_queue(space, schema=None)
    assert (one.id, one.path) == (other.id, other.path)
    assert ElementQueue(space["another"]).id != one.id


@pytest.mark.parametrize(
    "schema",
    [
        ["body"],
        "body",
        1,
        {"": "string"},
        {"a-b": "string"},
        {"é": "string"},
        {"a\n": "string"},
        {1: "string"},
        {"body": None},
        {"body": 1},
        {"body": ""},
        {"body": "text"},
        {"body": "String"},
        {"body": "string "},
        {"body": "string!"},
        {"body": "string?*?"},
        {"a": "binary?"},
        {"a": "table??"},
        {"a": "string*?", "b": "table?"},
    ],
)
def test_a_schema_that_is_none_is_refused(space: Subspace, schema: Any) -> None:
    with pytest.raises(QueueError, match="invalid schema"):
        element_queue(space, schema=schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"body": "string"},
        {"body": "string*"},
        {"Body2": "binary", "h": "table?*", "i": "string*?"},
        {"a": "string", "b": "table??", "c": "binary**"},
    ],
)
def test_a_schema_may_have_marks_in_any_order(space: Subspace, schema: dict[str, str]) -> None:
    element_queue(space, schema=schema)


def test_a_schema_without_a_mandatory_piece_says_so(space: Subspace) -> None:
    with pytest.raises(InvalidSchema, match="no mandatory data"):
        element_queue(space, schema={"a": "binary?"})


@pytest.mark.parametrize("schema", [None, {}])
def test_without_a_schema_all_but_adding_and_getting_works(
    db: Database, space: Subspace, schema: Any
) -> None:
    (name,) = filled(db, element_queue(space), 1)
    q = element_queue(space, schema=schema)
    assert q.lock(db, name)
    for attempt in (
        lambda: q.add(db, {}),
        lambda: q.enqueue(db, {"body": "x"}),
        lambda: q.get(db, name),
        lambda: q.dequeue(db, name),
        lambda: q.get_element(db, name),
    ):
        with pytest.raises(UnknownSchema, match="unknown schema"):
            attempt()
    q.touch(db, name)
    q.purge(db)
    assert q.unlock(db, name)
    assert (q.count(db), list(q.names(db))) == (1, [name])
    q.lock(db, name)
    q.remove(db, name)
    assert q.count(db) == 0


def test_the_schema_is_the_objects_not_the_queues(db: Database, space: Subspace) -> None:
    table = {"a": "1", "b": "2"}
    name = element_queue(space, {"x": "table", "y": "string"}).add(db, {"x": table, "y": "é"})
    reader = element_queue(space, {"x": "string", "y": "binary", "z": "string?"})
    assert reader.get_element(db, name) == {"x": "a\t1\nb\t2\n", "y": "é".encode()}
    with pytest.raises(UnreadableElement, match="missing data file: z"):
        element_queue(space, {"z": "string"}).get_element(db, name)


# -- 3: methods -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {"body": ""},
        {"body": "x"},
        {"body": "é\n\t\\\x00\U0001f600"},
        {"body": "x", "blob": b""},
        {"body": "x", "blob": b"\x00\xff\r\n"},
        {"body": "x", "header": {}},
        {"body": "x", "header": {"": "", "a\tb": "c\\d", "n\n": "\\n", "\\t": "\t", "é": "ü", "r": "\r"}},
    ],
)
def test_pieces_come_back_as_they_were(db: Database, q: ElementQueue, data: dict[str, Any]) -> None:
    name = q.add(db, data)
    q.lock(db, name)
    assert q.get(db, name) == data
    q.unlock(db, name)
    assert q.get_element(db, name) == data
    assert q.dequeue(db, name) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "missing mandatory data: body"),
        ({"header": {}}, "missing mandatory data: body"),
        ({"body": "x", "other": "y"}, "unexpected data: other"),
        ({"body": "x", "header": None}, "unexpected table data in header"),
        ({"body": None}, "unexpected string data in body"),
        ({"body": b"x"}, "unexpected string data in body"),
        ({"body": 1}, "unexpected string data in body"),
        ({"body": "\ud800"}, "unexpected string data in body"),
        ({"body": "x", "blob": "text"}, "unexpected binary data in blob"),
        ({"body": "x", "blob": bytearray(b"x")}, "unexpected binary data in blob"),
        ({"body": "x", "blob": None}, "unexpected binary data in blob"),
        ({"body": "x", "header": "text"}, "unexpected table data in header"),
        ({"body": "x", "header": [("a", "b")]}, "unexpected table data in header"),
        ({"body": "x", "header": {"a": b"b"}}, "invalid hash value type: b'b'"),
        ({"body": "x", "header": {"a": 1}}, "invalid hash value type: 1"),
        ({"body": "x", "header": {1: "a"}}, "invalid hash value type: 1"),
        ({"body": "x", "header": {"a": "\ud800"}}, "unexpected table data in header"),
        ("text", "unexpected data"),
        (None, "unexpected data"),
    ],
)
def test_data_that_does_not_fit_the_schema_writes_nothing(
    db: Database, space: Subspace, q: ElementQueue, data: Any, message: str
) -> None:
    for add in (q.add, q.enqueue):
        with pytest.raises(QueueError, match=re.escape(message)) as raised:
            add(db, data)
        assert isinstance(raised.value, InvalidElement)
    assert (q.count(db), stored(db, space)) == (0, [])


def test_large_pieces_are_split_and_joined(db: Database, space: Subspace, q: ElementQueue) -> None:
    data = {"body": "é" * 100_000, "blob": bytes(range(256)) * 1_000, "header": {"k" * 90_000: "v" * 90_000}}
    small, large = q.add(db, {"body": "x"}), q.add(db, data)
    assert max(len(value) for _, value in stored(db, space)) <= limits.PAYLOAD_PIECE_BYTES_MAX
    assert q.get_element(db, large) == data
    assert q.dequeue(db, large) == data
    q.dequeue(db, small)
    assert [value for _, value in stored(db, space) if any(value)] == []


def test_more_than_the_payload_limit_is_refused(db: Database, space: Subspace, q: ElementQueue) -> None:
    with pytest.raises(PayloadTooLarge, match=str(limits.PAYLOAD_BYTES_MAX)):
        q.add(db, {"body": "x" * limits.PAYLOAD_BYTES_MAX})
    assert stored(db, space) == []


def test_a_verb_of_a_lock_refuses_an_unlocked_element(db: Database, space: Subspace, q: ElementQueue) -> None:
    (name,) = filled(db, q, 1)
    before = stored(db, space)
    for unlocked_or_gone in (name, NOBODY):
        for verb in (q.get, q.remove, q.unlock):
            told = f"cannot {verb.__name__} {unlocked_or_gone}: not locked"
            with pytest.raises(OSError, match=told) as raised:
                verb(db, unlocked_or_gone)
            assert isinstance(raised.value, ElementNotLocked)
        assert q.unlock(db, unlocked_or_gone, permissive=True) is False
    assert stored(db, space) == before
    old = q.acquire(db, name)
    assert q.unlock(db, name, permissive=True) is True
    q.lock(db, name)
    assert q.unlock(db, name, permissive=True, token=old) is False


@pytest.mark.parametrize("verb", ["dequeue", "get_element"])
def test_what_cannot_be_locked_is_not_dequeued(db: Database, q: ElementQueue, verb: str) -> None:
    (name,) = filled(db, q, 1)
    q.lock(db, name)
    for locked_or_gone, why in ((name, "it is locked"), (NOBODY, "there is no such element")):
        told = f"couldn't lock element: {locked_or_gone}: {why}"
        with pytest.raises(QueueLockError, match=told) as raised:
            getattr(q, verb)(db, locked_or_gone)
        assert isinstance(raised.value, QueueError)
        with pytest.raises(OSError, match=f"cannot lock {locked_or_gone}") as other:
            getattr(q, verb)(db, locked_or_gone, permissive=False)
        assert not isinstance(other.value, QueueLockError)
    assert q.get(db, name) == {"body": "0"}


@pytest.mark.parametrize("verb", ["dequeue", "get_element"])
def test_what_cannot_be_read_stays_unlocked(db: Database, space: Subspace, verb: str) -> None:
    """The reference leaves it locked."""
    (name,) = filled(db, element_queue(space), 1)
    q = element_queue(space, {"other": "string"})
    with pytest.raises(UnreadableElement, match="missing data file: other"):
        getattr(q, verb)(db, name)

    @transactional
    def swallowed(tr: Any) -> None:
        with pytest.raises(UnreadableElement):
            getattr(q, verb)(tr, name)

    swallowed(db)
    assert q.count(db) == 1
    assert q.lock(db, name)


@pytest.mark.parametrize("text", ["a\n", "a\tb\tc\n", "a\tb\n\nc\td\n"])
def test_a_table_needs_one_tab_in_every_line(db: Database, space: Subspace, text: str) -> None:
    name = element_queue(space, {"x": "string"}).add(db, {"x": text})
    with pytest.raises(QueueError, match="unexpected hash line: "):
        element_queue(space, {"x": "table"}).get_element(db, name)


@pytest.mark.parametrize(
    ("text", "table"),
    [("", {}), ("a\tb\n", {"a": "b"}), ("a\t1\na\t2", {"a": "2"}), ("\\\\t\t\n", {"\\t": ""})],
)
def test_a_table_in_the_references_form_can_be_read(
    db: Database, space: Subspace, text: str, table: dict[str, str]
) -> None:
    name = element_queue(space, {"x": "string"}).add(db, {"x": text})
    assert element_queue(space, {"x": "table"}).get_element(db, name) == {"x": table}


def test_bytes_that_are_no_text_are_not_read_as_one(db: Database, space: Subspace) -> None:
    name = element_queue(space, {"x": "binary"}).add(db, {"x": b"\xff"})
    for type_ in ("string", "table"):
        with pytest.raises(UnreadableElement):
            element_queue(space, {"x": type_}).get_element(db, name)


def test_touch(db: Database, q: ElementQueue) -> None:
    (name,) = filled(db, q, 1)
    assert q.touch(db, name) is None
    assert q.lock(db, name), "a touch does not lock"
    assert q.touch(db, name) is None
    for gone in (NOBODY, *MALFORMED):
        with pytest.raises(EnvironmentError, match="no such element") as raised:
            q.touch(db, gone)
        assert isinstance(raised.value, ElementNotFound)


@pytest.mark.parametrize("name", [*MALFORMED, None, 5])
def test_a_malformed_name_is_always_refused(db: Database, q: ElementQueue, name: Any) -> None:
    for attempt in (
        lambda: q.lock(db, name),
        lambda: q.lock(db, name, permissive=False),
        lambda: q.acquire(db, name),
        lambda: q.unlock(db, name),
        lambda: q.unlock(db, name, permissive=True),
        lambda: q.get(db, name),
        lambda: q.remove(db, name),
        lambda: q.dequeue(db, name),
        lambda: q.get_element(db, name, permissive=False),
    ):
        with pytest.raises(QueueError, match="invalid element name") as raised:
            attempt()
        assert isinstance(raised.value, InvalidElementName)


def test_a_copy_is_independent(db: Database, q: ElementQueue) -> None:
    names = filled(db, q, 3)
    q.first(db)
    twin = q.copy()
    assert twin.next(db) == ""
    assert [twin.first(db), q.next(db), twin.next(db)] == [names[0], names[1], names[1]]
    twin.path = "elsewhere"
    assert q.path != "elsewhere"
    assert twin.get_element(db, names[0]) == {"body": "0"}


def test_every_method_composes_in_a_transaction(db: Database, q: ElementQueue) -> None:
    """Seen by the transaction at once, by others when it commits."""
    (old,) = filled(db, q, 1)
    tr = db.create_transaction()
    name = q.add(tr, {"body": "new"})
    assert [q.lock(tr, old), q.lock(tr, old), q.lock(tr, name)] == [True, False, True]
    q.touch(tr, name)
    assert q.get(tr, name) == {"body": "new"}
    q.remove(tr, old)
    assert (q.count(tr), list(q.names(tr))) == (1, [name])
    assert (q.count(db), list(q.names(db))) == (1, [old])
    assert q.lock(db, NOBODY) is False
    tr.commit().wait()
    assert list(q.names(db)) == [name]
    assert q.unlock(db, name)


def test_what_conflicts_is_a_change_of_the_same_element(db: Database, q: ElementQueue) -> None:
    one, other = filled(db, q, 2)

    def commits_beside(mine: Any, theirs: Any) -> bool:
        first, second = db.create_transaction(), db.create_transaction()
        mine(first), theirs(second)
        first.commit().wait()
        return commit_code(second) == 0

    assert not commits_beside(lambda tr: q.lock(tr, one), lambda tr: q.lock(tr, one))
    q.unlock(db, one)
    assert commits_beside(lambda tr: q.lock(tr, one), lambda tr: q.lock(tr, other))
    assert commits_beside(lambda tr: q.add(tr, {"body": "a"}), lambda tr: q.add(tr, {"body": "b"}))
    assert commits_beside(lambda tr: q.remove(tr, one), lambda tr: (q.count(tr), q.add(tr, {"body": "c"})))
    assert not commits_beside(lambda tr: q.touch(tr, other), lambda tr: q.remove(tr, other))


def test_a_snapshot_can_look_and_not_write(db: Database, q: ElementQueue) -> None:
    (name,) = filled(db, q, 1)
    tr = db.create_transaction()
    assert (q.count(tr.snapshot), q.first(tr.snapshot)) == (1, name)
    for write in (lambda: q.add(tr.snapshot, {"body": "x"}), lambda: q.lock(tr.snapshot, name)):
        with pytest.raises(NotADatabase):
            write()


@pytest.mark.parametrize("target", [None, "db", 1])
def test_an_object_that_is_no_database_is_refused(q: ElementQueue, target: Any) -> None:
    for attempt in (
        lambda: q.add(target, {"body": "x"}),
        lambda: q.lock(target, NOBODY),
        lambda: q.count(target),
        lambda: q.first(target),
        lambda: q.purge(target),
    ):
        with pytest.raises(NotADatabase):
            attempt()


def test_every_error_is_below_the_one_root() -> None:
    for error in (CannotLock, ElementNotFound, ElementNotLocked, InvalidSchema, QueueLockError):
        assert issubclass(error, QueueError)
        assert issubclass(error, FdbQueueError)


# -- 4: iteration ---------------------------------------------------------------------------------------


def test_first_and_next(db: Database, q: ElementQueue) -> None:
    assert (q.next(db), q.first(db), q.next(db)) == ("", "", "")
    names = filled(db, q, 3)
    assert q.next(db) == "", "without first() there is no pass"
    assert [q.first(db), q.next(db), q.next(db), q.next(db), q.next(db)] == [*names, "", ""]
    assert q.first(db) == names[0]


def test_a_loop_and_first_and_next_share_a_cursor(db: Database, q: ElementQueue) -> None:
    names = filled(db, q, 5)
    seen = []
    for name in q.names(db):
        seen.append(name)
        if len(seen) == 2:
            seen.append(q.next(db))
    assert seen == names
    assert q.next(db) == ""
    for _ in q.names(db):
        break
    assert [q.next(db) for _ in range(6)] == [*names[1:], "", ""]


def test_a_loop_begins_anew(db: Database, q: ElementQueue) -> None:
    names = filled(db, q, 3)
    q.first(db)
    assert list(q.names(db)) == names
    assert list(q.names(db)) == names
    later = q.names(db)
    assert list(later) == names
    assert next(later, "over") == "over"


def test_count_does_not_disturb_a_pass_and_purge_ends_it(db: Database, q: ElementQueue) -> None:
    names = filled(db, q, 3)
    q.first(db)
    q.count(db)
    assert q.next(db) == names[1]
    assert q.purge(db) is None
    assert q.next(db) == ""


def test_no_transaction_is_open_between_elements(db: Database, q: ElementQueue, monkeypatch: Any) -> None:
    """Names read ahead are of one transaction; the next one reads the later state of the rest."""
    monkeypatch.setattr("fdbqueue.core.limits.NAMES_READ_FIRST", 2)
    names = filled(db, q, 6)
    pass_ = q.names(db)
    assert next(pass_) == names[0]
    q.dequeue(db, names[1])
    q.dequeue(db, names[4])
    assert list(pass_) == [names[1], names[2], names[3], names[5]]


# -- 5: directories -------------------------------------------------------------------------------------


def test_maxelts_bounds_the_names_read_at_a_time(db: Database, space: Subspace) -> None:
    q = element_queue(space, maxelts=3)
    names = filled(db, q, 7)
    assert q.first(db) == names[0]
    assert len(q._cursor._ahead) == 2
    assert names == sorted(names), "and has nothing to do with names"


# -- 6: purge (with a clock set by hand: test_locks.py) -------------------------------------------------


@pytest.mark.parametrize("age", [-1, float("nan"), float("inf"), "600", None])
def test_an_age_that_is_none_is_refused(db: Database, q: ElementQueue, age: Any) -> None:
    for name in ("maxtemp", "maxlock"):
        with pytest.raises(InvalidArgument, match=name):
            q.purge(db, **{name: age})


# -- named queues ---------------------------------------------------------------------------------------


def test_a_named_queue_remembers_the_schema_it_was_made_with(db: Database, space: Subspace) -> None:
    root = space["root"]
    made = ElementQueue.named(db, "outbox", SCHEMA, root=root)
    name = made.add(db, {"body": "x", "blob": b"y"})
    found = ElementQueue.named(db, "outbox", create=False, root=root)
    assert found.get_element(db, name) == {"body": "x", "blob": b"y"}
    other = ElementQueue.named(db, "outbox", {"blob": "binary"}, root=root)
    assert other.get_element(db, name) == {"blob": b"y"}


def test_a_named_queue_that_is_not_there_or_of_another_kind(db: Database, space: Subspace) -> None:
    root = space["root"]
    with pytest.raises(QueueNotFound):
        ElementQueue.named(db, "outbox", create=False, root=root)
    fdbqueue.Queue.named(db, "outbox", root=root)
    with pytest.raises(QueueKindMismatch):
        ElementQueue.named(db, "outbox", root=root)
    with pytest.raises(InvalidSchema):
        ElementQueue.named(db, "new", {"a": "nonsense"}, root=root)
    with pytest.raises(QueueNotFound):
        ElementQueue.named(db, "new", create=False, root=root)


def test_calls_on_a_dropped_queue_say_so(db: Database, space: Subspace) -> None:
    q = ElementQueue.named(db, "outbox", SCHEMA, root=space["root"])
    name = q.add(db, {"body": "x"})
    Registry(space["root"]).drop(db, "outbox")
    for attempt in (
        lambda: q.add(db, {"body": "x"}),
        lambda: q.lock(db, name),
        lambda: q.unlock(db, name),
        lambda: q.get(db, name),
        lambda: q.get_element(db, name),
        lambda: q.remove(db, name),
        lambda: q.touch(db, name),
        lambda: q.count(db),
        lambda: q.first(db),
        lambda: q.purge(db),
    ):
        with pytest.raises(QueueDropped):
            attempt()
