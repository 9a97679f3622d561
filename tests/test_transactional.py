"""`fdbqueue.transactional`: a database runs, commits and retries; a transaction composes."""

import functools

import pytest

import fdbqueue
from fdbqueue.core.errors import NotADatabase
from tests.support import NOT_COMMITTED, TIMED_OUT, ManualClock, begin, commit_code, error_code


@fdbqueue.transactional
def put(tr, key, value=b"1"):
    """Set one key."""
    tr[key] = value
    return tr


class Contention:
    """A body that loses its first `losses` attempts to another transaction."""

    def __init__(self, db, key, losses):
        self.db, self.key, self.losses = db, key, losses
        self.attempts = 0

    def __call__(self, tr):
        tr[self.key].wait()
        self.attempts += 1
        if self.attempts <= self.losses:
            self.db[self.key] = b"other %d" % self.attempts
        tr[self.key] = b"mine"
        return self.attempts


def test_a_database_runs_and_commits(db, k):
    """The result is the function's."""
    assert hasattr(put(db, k("a")), "get_read_version")
    assert db[k("a")] == b"1"


def test_an_engines_own_database_will_do(engine_db, k):
    put(engine_db, k("a"))
    assert engine_db[k("a")] == b"1"


def test_a_transaction_composes(db, k):
    """Nothing is committed; that is the caller's."""
    tr = begin(db)
    assert put(tr, k("a")) is tr
    assert db[k("a")] is None
    tr.commit().wait()
    assert db[k("a")] == b"1"


def test_transactional_functions_call_each_other(db, k):
    """The inner one joins the outer one's transaction."""

    @fdbqueue.transactional
    def both(tr):
        put(tr, k("a"))
        put(tr=tr, key=k("b"))
        raise LookupError("after both")

    with pytest.raises(LookupError):
        both(db)
    assert db.get_range(k.begin, k.end) == []


def test_a_snapshot_is_a_transaction_to_it(db, k):
    """Functions that only read may be given a snapshot."""

    @fdbqueue.transactional
    def read(tr):
        return tr[k("a")].value

    db[k("a")] = b"1"
    assert read(db.create_transaction().snapshot) == b"1"


@pytest.mark.parametrize("how", ["first", "keyword", "second", "named"])
def test_the_database_may_be_anywhere(db, k, how):
    """By position or by keyword, whatever the parameter is called."""

    @fdbqueue.transactional
    def second(key, tr):
        tr[key] = b"1"

    @fdbqueue.transactional(parameter="where")
    def named(key, *, where):
        where[key] = b"1"

    {
        "first": lambda: put(db, k("a")),
        "keyword": lambda: put(key=k("a"), tr=db),
        "second": lambda: second(k("a"), db),
        "named": lambda: named(k("a"), where=db),
    }[how]()
    assert db[k("a")] == b"1"


def test_methods_can_be_transactional(db, k):
    """`self` comes first, and is left alone."""

    class Store:
        @fdbqueue.transactional
        def put(self, tr, key):
            tr[key] = b"1"
            return self

    store = Store()
    assert store.put(db, k("a")) is store
    assert db[k("a")] == b"1"


@pytest.mark.commits_by_hand
def test_a_conflict_is_retried_until_it_commits(db, k):
    """Each attempt sees the database anew."""
    body = Contention(db, k("a"), losses=3)

    @fdbqueue.transactional
    def work(tr):
        return body(tr)

    assert work(db) == 4
    assert db[k("a")] == b"mine"


def test_a_retry_limit_gives_up(db, fdb_module, k):
    """With two retries there are three attempts, then the error."""
    body = Contention(db, k("a"), losses=100)

    @fdbqueue.transactional(retry_limit=2)
    def work(tr):
        body(tr)

    with pytest.raises(fdb_module.FDBError) as gave_up:
        work(db)
    assert gave_up.value.code == NOT_COMMITTED
    assert body.attempts == 3


@pytest.mark.commits_by_hand
def test_a_timeout_gives_up(db, fdb_module, k):
    body = Contention(db, k("a"), losses=1_000_000)

    @fdbqueue.transactional(timeout_s=0.2)
    def work(tr):
        body(tr)

    with pytest.raises(fdb_module.FDBError) as gave_up:
        work(db)
    assert gave_up.value.code == TIMED_OUT
    assert body.attempts > 1


def test_a_timeout_of_zero_is_the_shortest_one():
    """An engine takes 0 for no limit."""
    clock = ManualClock()

    @fdbqueue.transactional(timeout_s=0)
    def work(tr):
        clock.advance(1)
        tr[b"a"] = b"1"

    with fdbqueue.open("memory:", runtime=clock) as db:
        assert error_code(lambda: work(db)) == TIMED_OUT


def test_limits_do_not_touch_the_callers_transaction(db, k):
    """Composed, the options are the caller's."""

    @fdbqueue.transactional(retry_limit=0, timeout_s=0.001)
    def work(tr):
        tr[k("a")] = b"1"

    tr = begin(db)
    work(tr)
    tr.on_error(NOT_COMMITTED).wait()
    assert commit_code(tr) == 0


def test_other_exceptions_come_out_and_nothing_is_committed(db, k):
    attempts = []

    @fdbqueue.transactional
    def work(tr):
        attempts.append(1)
        tr[k("a")] = b"1"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work(db)
    assert attempts == [1]
    assert db[k("a")] is None


def test_an_error_that_cannot_be_retried_comes_out(db, fdb_module):

    @fdbqueue.transactional
    def work(tr):
        tr[b"\xff"] = b"1"

    with pytest.raises(fdb_module.FDBError) as refused:
        work(db)
    assert refused.value.code == 2004


def test_generators_and_coroutines_are_refused_at_decoration():
    """Their body would run after the commit."""

    def rows(tr):
        yield tr

    async def later(tr):
        return tr

    async def rows_later(tr):
        yield tr

    for deferred in (rows, later, rows_later):
        with pytest.raises(TypeError, match=f"{deferred.__name__} cannot be transactional"):
            fdbqueue.transactional(deferred)


def test_a_function_without_the_parameter_is_refused_at_once():
    with pytest.raises(TypeError, match="has no parameter 'tr'"):

        @fdbqueue.transactional
        def work(transaction):
            return transaction


def test_anything_else_than_a_database_is_told(k):
    with pytest.raises(NotADatabase, match="'str'"):
        put("a database", k("a"))


def test_a_missing_argument_is_pythons_own_error():
    with pytest.raises(TypeError, match="put"):
        put()


def test_the_function_keeps_its_name_and_signature():
    assert put.__name__ == "put"
    assert put.__doc__ == "Set one key."
    assert put.__wrapped__ is not None


def test_a_wrapped_function_is_looked_through(db, k):
    """Other decorators below do not hide the parameter."""

    def logged(function):
        @functools.wraps(function)
        def wrapper(*args, **kwargs):
            return function(*args, **kwargs)

        return wrapper

    @fdbqueue.transactional
    @logged
    def work(key, tr):
        tr[key] = b"1"

    work(k("a"), db)
    assert db[k("a")] == b"1"
