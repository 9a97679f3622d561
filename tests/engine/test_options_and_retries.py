"""Options, timeouts, and the retry loop's `on_error`."""

import time

import pytest

from fdbqueue.embedded.transaction import open_private
from tests.engine.releases import require
from tests.support import (
    CANCELLED,
    CLUSTER_VERSION_CHANGED,
    COMMIT_UNKNOWN,
    INVALID_OPERATION,
    INVALID_OPTION_VALUE,
    KEY_TOO_LARGE,
    NOT_COMMITTED,
    TIMED_OUT,
    TOO_OLD,
    USED_DURING_COMMIT,
    begin,
    commit_code,
    error_code,
)

RETRYABLE = [1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1213]
NOT_RETRYABLE = [1000, 1025, 1031, 1036, CLUSTER_VERSION_CHANGED, 2000, 2004, 2017, 2101, 2102, 2103]


@pytest.mark.parametrize("code", RETRYABLE)
def test_on_error_prepares_another_attempt(db, engine, k, code):
    require(engine, f"on_error({code})")
    tr = begin(db)
    tr.options.set_max_retry_delay(1)
    tr[k("a")] = b"1"
    assert tr.on_error(code).wait() is None
    assert not tr[k("a")].present()
    assert commit_code(tr) == 0


@pytest.mark.parametrize("code", NOT_RETRYABLE)
def test_on_error_raises_what_cannot_be_retried(db, k, code):
    """Other errors come back, and the transaction is over."""
    tr = begin(db)
    assert error_code(lambda: tr.on_error(code).wait()) == code
    assert error_code(lambda: tr[k("a")].wait()) == CANCELLED


def test_on_error_takes_an_error_or_its_code(db, fdb_module):
    """An exception that is no FDBError is raised unchanged, and the code of success is refused."""
    tr = begin(db)
    assert tr.on_error(fdb_module.FDBError(NOT_COMMITTED)).wait() is None
    assert tr.on_error(NOT_COMMITTED).wait() is None
    with pytest.raises(ZeroDivisionError):
        tr.on_error(ZeroDivisionError())
    assert error_code(lambda: tr.on_error(0).wait()) == INVALID_OPERATION


def test_other_options_count_for_one_attempt(db, k):
    """Timeout, retry limit and delay last until reset."""
    db[k("a")] = b"old"
    tr = begin(db)
    tr.options.set_max_retry_delay(1)
    tr.options.set_snapshot_ryw_disable()
    tr.options.set_size_limit(2_000)
    tr.on_error(NOT_COMMITTED).wait()
    tr[k("a")] = b"v" * 3_000
    assert tr.snapshot[k("a")] == b"v" * 3_000
    assert commit_code(tr) == 0


@pytest.mark.parametrize(
    ("limits", "codes"),
    [([2], [0, 0, NOT_COMMITTED]), ([0], [NOT_COMMITTED]), ([1, -1], [0] * 5), ([0, None], [0] * 5)],
)
def test_the_retry_limit_counts_retries(db, limits, codes):
    """-1 takes the limit away, and so does a reset."""
    tr = begin(db)
    for limit in limits:
        tr.reset() if limit is None else tr.options.set_retry_limit(limit)
    tr.options.set_max_retry_delay(1)
    assert [error_code(lambda: tr.on_error(NOT_COMMITTED).wait()) for _ in codes] == codes


def use_until_it_fails(tr, key):
    """Read until the timeout is over, without a look at the clock."""
    while error_code(lambda: tr[key].wait()) == 0:
        pass


def test_a_timeout_ends_the_transaction(db, k):
    """After `timeout` milliseconds every use fails with 1031, also on_error."""
    tr = db.create_transaction()
    tr.options.set_timeout(20)
    use_until_it_fails(tr, k("a"))
    assert error_code(lambda: tr[k("a")].wait()) == TIMED_OUT
    assert commit_code(tr) == TIMED_OUT
    assert error_code(lambda: tr.on_error(NOT_COMMITTED).wait()) == TIMED_OUT


def test_a_timeout_is_over_all_attempts(db):
    """on_error neither restarts the clock nor forgets the timeout. No pause is as long as the timeout."""
    tr = db.create_transaction()
    tr.options.set_timeout(100)
    tr.options.set_max_retry_delay(5)
    codes = [0]
    while codes[-1] == 0 and len(codes) < 2_000:
        codes.append(error_code(lambda: tr.on_error(NOT_COMMITTED).wait()))
    assert codes[-1] == TIMED_OUT
    assert len(codes) > 2


def test_a_timeout_of_zero_means_none(db, k):
    tr = db.create_transaction()
    tr.options.set_timeout(60_000)
    tr.options.set_timeout(0)
    assert error_code(lambda: tr[k("a")].wait()) == 0


@pytest.mark.parametrize("later_ms", [0, 60_000])
def test_a_timeout_that_has_fired_stays_fired(db, k, later_ms):
    """A new option does not undo it, even if no call has noticed it; a reset does."""
    tr = db.create_transaction()
    tr[k("a")] = b"1"
    tr.options.set_timeout(10)
    time.sleep(0.2)
    tr.options.set_timeout(later_ms)
    assert commit_code(tr) == TIMED_OUT
    assert db[k("a")] is None
    tr.reset()
    assert error_code(lambda: tr[k("a")].wait()) == 0


def test_a_timeout_that_is_over_when_it_is_set_fires(db, k):
    """It counts from the creation of the transaction."""
    tr = db.create_transaction()
    time.sleep(0.2)
    tr.options.set_timeout(10)
    tr.options.set_timeout(0)
    assert error_code(lambda: tr[k("a")].wait()) == TIMED_OUT


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout", -1),
        ("retry_limit", -2),
        ("max_retry_delay", -1),
        ("size_limit", 31),
        ("size_limit", 10_000_001),
    ],
)
def test_an_option_out_of_its_range_is_refused(db, k, option, value):
    """The error comes with the next future, like that of a bad write."""
    tr = db.create_transaction()
    getattr(tr.options, f"set_{option}")(value)
    assert error_code(lambda: tr[k("a")].wait()) == INVALID_OPTION_VALUE


def test_a_later_database_default_counts_from_the_reset(db, k):
    """It does not count for the next attempt of an older transaction."""
    tr = begin(db)
    db.options.set_transaction_size_limit(2_000)
    try:
        tr.on_error(NOT_COMMITTED).wait()
        tr[k("a")] = b"v" * 3_000
        assert commit_code(tr) == 0
        tr.reset()
        tr[k("a")] = b"v" * 3_000
        assert commit_code(tr) == 2101
    finally:
        db.options.set_transaction_size_limit(10_000_000)


def test_the_database_sets_defaults_for_its_transactions(db, k):
    """Each later transaction begins with the options `db.options.set_transaction_...`."""
    db.options.set_transaction_retry_limit(0)
    db.options.set_transaction_size_limit(2_000)
    try:
        tr = begin(db)
        assert error_code(lambda: tr.on_error(NOT_COMMITTED).wait()) == NOT_COMMITTED
        tr = begin(db)
        tr[k("a")] = b"v" * 3_000
        assert commit_code(tr) == 2101
        tr.reset()
        assert error_code(lambda: tr.on_error(NOT_COMMITTED).wait()) == NOT_COMMITTED
    finally:
        db.options.set_transaction_retry_limit(-1)
        db.options.set_transaction_size_limit(10_000_000)


@pytest.mark.parametrize(
    "option",
    ["causal_read_risky", "priority_batch", "priority_system_immediate", "read_priority_low", "lock_aware"],
)
def test_an_option_without_meaning_here_is_accepted(db, engine, k, option):
    require(engine, option)
    tr = db.create_transaction()
    getattr(tr.options, f"set_{option}")()
    tr[k("a")] = b"1"
    assert commit_code(tr) == 0


def test_an_unknown_option_is_an_attribute_error(db, fdb_module):
    for options in (db.options, db.create_transaction().options, fdb_module.options):
        with pytest.raises(AttributeError):
            options.set_no_such_thing  # noqa: B018
        with pytest.raises(AttributeError):
            options.timeout  # noqa: B018


def test_options_check_their_argument(db):
    """A number must be a number, and an option without an argument takes none."""
    options = db.create_transaction().options
    with pytest.raises(TypeError):
        options.set_access_system_keys(1)
    with pytest.raises(TypeError):
        options.set_debug_transaction_identifier(7)


def test_used_during_commit_is_an_error(db, k):
    """After commit was called every use but reset and on_error fails with 2017. No write counts any more."""
    tr = begin(db)
    tr[k("a")] = b"1"
    tr.commit().wait()
    for use in (
        lambda: tr[k("a")].wait(),
        lambda: tr.get_range(k.begin, k.end).to_list(),
        lambda: tr.get_versionstamp().wait(),
        lambda: (tr.set(k("b"), b"1"), tr.commit().wait()),
    ):
        assert error_code(use) == USED_DURING_COMMIT
    assert k.names(db.get_range(k.begin, k.end)) == "a"


def test_a_reset_transaction_can_be_committed_again(db, k):
    tr = db.create_transaction()
    for name in "abc":
        tr[k(name)] = b"1"
        tr.commit().wait()
        tr.reset()
    assert k.names(db.get_range(k.begin, k.end)) == "abc"


@pytest.mark.parametrize(
    ("predicate", "right", "wrong"),
    [
        ("is_retryable", [NOT_COMMITTED, COMMIT_UNKNOWN], [KEY_TOO_LARGE]),
        ("is_maybe_committed", [COMMIT_UNKNOWN], [NOT_COMMITTED]),
        ("is_retryable_not_committed", [NOT_COMMITTED, TOO_OLD], [COMMIT_UNKNOWN]),
    ],
)
def test_predicates_know_what_to_do_about_an_error(fdb_module, predicate, right, wrong):
    is_so = getattr(fdb_module.predicates, predicate)
    assert all(is_so(fdb_module.FDBError(code)) for code in right)
    assert not any(is_so(fdb_module.FDBError(code)) for code in wrong)


@pytest.mark.slow
def test_a_transaction_lives_five_seconds_of_real_time(db, k):
    """On each engine, reads work for about five seconds, and then fail with 1007."""
    tr = begin(db)
    tr[k("a")] = b"1"
    began = time.monotonic()
    code = 0
    while code == 0 and time.monotonic() - began < 30:
        unread = k(b"%f" % time.monotonic())  # a client may answer from its cache
        code = error_code(lambda unread=unread: tr[unread].wait())
        db[k("version")] = b"%f" % time.monotonic()  # a cluster's versions go on with its commits
        time.sleep(0.05)
    assert code == TOO_OLD
    assert 4 < time.monotonic() - began < 10
    assert commit_code(tr) == TOO_OLD
    assert db[k("a")] is None


# The tests below set the clock of the embedded engine by hand.


@pytest.fixture
def clocked(clock):
    """Return an embedded database with a clock set by hand."""
    database = open_private(clock)
    yield database
    database.close()


def test_a_transaction_is_too_old_after_five_seconds(clock, clocked):
    """It reads and commits no more; 1007 is retryable, at a new version."""
    tr = begin(clocked)
    clock.advance(4.9)
    assert error_code(lambda: tr[b"a"].wait()) == 0
    clock.advance(0.2)
    assert error_code(lambda: tr[b"a"].wait()) == TOO_OLD
    tr[b"a"] = b"1"
    assert commit_code(tr) == TOO_OLD
    assert clocked[b"a"] is None
    tr.on_error(TOO_OLD).wait()
    tr[b"a"].wait()
    assert commit_code(tr) == 0


def test_a_blind_write_is_never_too_old(clock, clocked):
    """It has no read version that could be too old."""
    tr = clocked.create_transaction()
    tr[b"a"] = b"1"
    clock.advance(100)
    assert commit_code(tr) == 0


def test_the_back_off_grows_up_to_its_limit(clock, clocked):
    """Delays are random, below a ceiling that doubles from 10 ms to one second."""
    tr = begin(clocked)
    for attempt in range(12):
        before = clock.monotonic()
        tr.on_error(NOT_COMMITTED).wait()
        assert 0 <= clock.monotonic() - before <= min(1.0, 0.01 * 2**attempt)
    assert max(clock.slept) > 0.05


def test_max_retry_delay_bounds_the_back_off(clock, clocked):
    tr = begin(clocked)
    tr.options.set_max_retry_delay(20)
    for _ in range(10):
        tr.on_error(NOT_COMMITTED).wait()
    assert max(clock.slept) <= 0.02


@pytest.mark.parametrize("again", [lambda _: None, lambda tr: tr.on_error(NOT_COMMITTED).wait()])
def test_a_timeout_is_in_milliseconds_of_all_attempts(clock, clocked, again):
    """It counts from the creation of the transaction."""
    tr = clocked.create_transaction()
    tr.options.set_timeout(1_000)
    clock.advance(0.6)
    again(tr)
    assert error_code(lambda: tr[b"a"].wait()) == 0
    clock.advance(0.6)
    assert error_code(lambda: tr[b"a"].wait()) == TIMED_OUT


def test_a_timeout_cuts_the_back_off_short(clock, clocked, monkeypatch):
    """It fires while on_error waits, not afterwards."""
    monkeypatch.setattr(clock, "random", lambda: 1.0)
    tr = clocked.create_transaction()
    tr.options.set_timeout(4)
    assert error_code(lambda: tr.on_error(NOT_COMMITTED).wait()) == TIMED_OUT
    assert clock.slept == [pytest.approx(0.004)]
    assert error_code(lambda: tr[b"a"].wait()) == TIMED_OUT
