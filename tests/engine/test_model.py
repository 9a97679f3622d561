"""Random programs of several interleaved transactions, on an engine and on the plain model at once.

Each read, each commit and the final database must be the same on both. Keys are few, so
that transactions meet all the time; some are long, around where the embedded engine stores them otherwise.
On a cluster, guard keys on both sides keep selectors from running into foreign data; on an embedded
engine the database is the machine's own, and selectors may run off its ends.
"""

import itertools
import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fdbqueue.embedded import KeySelector as EmbeddedSelector
from tests.conftest import SLOW, TEST_ROOT
from tests.support import NOT_COMMITTED, commit_code
from tests.system import plain_engine as model
from tests.system.plain_engine import OPERATIONS, Mutation, Selector, after


class Long(bytes):
    """Many bytes with a short repr, which keeps the reports of programs short."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes to {self[-1:]!r}>"


SHORT = [b"a", b"a\x00", b"b", b"ba", b"c", b"d", b"e"]
STEM = b"c" + b"x" * 480
# The storage of long keys changes at 503/504 and 511/512 bytes; a shared prefix must not confuse it.
LONG = [
    Long(STEM + b"y" * (size - len(STEM) - 1) + tail)
    for size in (502, 503, 504, 505, 511, 512, 600)
    for tail in (b"a", b"b")
] + [Long(STEM + b"y" * (9_900 - len(STEM))), Long(STEM + b"y" * (9_900 - len(STEM)) + b"z")]
MAX_OFFSET = 4
GUARDS = 3 * MAX_OFFSET

keys = st.one_of(st.sampled_from(SHORT), st.sampled_from(SHORT), st.sampled_from(LONG))
values = st.sampled_from([b"", b"\x01", b"\x02\x01", b"abc", b"\xff\xff", Long(b"v" * 5_000)])
operands = st.sampled_from([b"", b"\x01", b"\xff", b"\x01\x02", b"abc"])
selectors = st.builds(Selector, keys, st.booleans(), st.integers(-MAX_OFFSET + 1, MAX_OFFSET))
ends = st.one_of(
    st.builds(lambda key: Selector(key, False, 1), keys), selectors
)  # most ranges have plain keys
RUN = os.urandom(8)
limits = st.sampled_from([0, 0, 1, 2, 3, 100])
seldom = st.sampled_from([False] * 7 + [True])


class Programs(RuleBasedStateMachine):
    """One open database, one model, and any number of transactions that live on both."""

    database: Any = None
    selector_class: Any = EmbeddedSelector
    guarded = False
    left_out: frozenset[str] = frozenset()
    runs = itertools.count()

    transactions = Bundle("transactions")

    def __init__(self) -> None:
        super().__init__()
        self.prefix = TEST_ROOT[RUN][next(self.runs)].key() if self.guarded else b""
        tr = self.database.create_transaction()
        tr.clear_range(self.prefix, self.prefix + b"\xff" if self.guarded else b"\xff")
        tr.commit().wait()
        self.model = model.Database()
        self.silence = False

    # -- keys of the model are keys of the engine below a prefix --------------------------------------

    def own(self, key: bytes) -> bytes:
        return self.prefix + key

    def engine_selector(self, selector: Selector) -> Any:
        return self.selector_class(self.own(selector.key), selector.or_equal, selector.offset)

    def rows(self, rows: Any) -> list[tuple[bytes, bytes]]:
        return [(bytes(row.key)[len(self.prefix) :], row.value) for row in rows]

    # -- rules ------------------------------------------------------------------------------------------

    @initialize(contents=st.dictionaries(keys, values, max_size=8), silence=st.booleans())
    def fill(self, contents: dict[bytes, bytes], silence: bool) -> None:
        self.silence = silence  # whether this program has silent writes
        if self.guarded:
            low = {b"\x01%02d" % number: b"guard" for number in range(GUARDS)}
            high = {b"\xf0%02d" % number: b"guard" for number in range(GUARDS)}
            contents = {**contents, **low, **high}
        tr = self.database.create_transaction()
        for key, value in contents.items():
            tr[self.own(key)] = value
        tr.commit().wait()
        self.model = model.Database(contents.items())

    @rule(target=transactions)
    def begin(self) -> Any:
        tr = self.database.create_transaction()
        tr.get_read_version().wait()
        return tr, self.model.begin()

    @rule(pair=transactions, key=keys, snapshot=st.booleans())
    def get(self, pair: Any, key: bytes, snapshot: bool) -> None:
        tr, plain = pair
        reader = tr.snapshot if snapshot else tr
        assert reader.get(self.own(key)).value == plain.get(key, snapshot)

    @rule(pair=transactions, selector=selectors, snapshot=st.booleans())
    def get_key(self, pair: Any, selector: Selector, snapshot: bool) -> None:
        tr, plain = pair
        reader = tr.snapshot if snapshot else tr
        found = reader.get_key(self.engine_selector(selector)).value
        expected = plain.get_key(selector, snapshot)
        assert found == (self.own(expected) if self.guarded else expected)

    @rule(
        pair=transactions,
        begin=ends,
        end=ends,
        limit=limits,
        reverse=st.booleans(),
        snapshot=st.booleans(),
    )
    def get_range(
        self, pair: Any, begin: Selector, end: Selector, limit: int, reverse: bool, snapshot: bool
    ) -> None:
        tr, plain = pair
        reader = tr.snapshot if snapshot else tr
        rows = reader.get_range(
            self.engine_selector(begin), self.engine_selector(end), limit=limit, reverse=reverse
        )
        assert self.rows(rows.to_list()) == plain.get_range(begin, end, limit, reverse, snapshot)

    def write(self, pair: Any, silent: bool, mutation: Mutation) -> None:
        """Write the same on both; the option counts for the next write only."""
        tr, plain = pair
        begin, end = self.own(mutation.begin), self.own(mutation.end)
        silent = silent and self.silence
        if silent:
            tr.options.set_next_write_no_write_conflict_range()
        if mutation.operation == "set":
            tr[begin] = mutation.operand
        elif mutation.operation == "clear key":
            del tr[begin]
        elif mutation.operation == "clear":
            tr.clear_range(begin, end)
        else:
            getattr(tr, mutation.operation)(begin, mutation.operand)
        plain.write(replace(mutation, operation=mutation.operation.removesuffix(" key")), silent)

    @rule(pair=transactions, key=keys, value=values, silent=seldom)
    def set(self, pair: Any, key: bytes, value: bytes, silent: bool) -> None:
        self.write(pair, silent, Mutation(key, after(key), "set", value))

    @rule(pair=transactions, key=keys, silent=seldom)
    def clear(self, pair: Any, key: bytes, silent: bool) -> None:
        self.write(pair, silent, Mutation(key, after(key), "clear key"))

    @rule(pair=transactions, first=keys, second=keys, silent=seldom)
    def clear_range(self, pair: Any, first: bytes, second: bytes, silent: bool) -> None:
        self.write(pair, silent, Mutation(min(first, second), max(first, second)))

    @rule(
        pair=transactions, name=st.sampled_from(sorted(OPERATIONS)), key=keys, operand=operands, silent=seldom
    )
    def operate(self, pair: Any, name: str, key: bytes, operand: bytes, silent: bool) -> None:
        if name not in self.left_out:
            self.write(pair, silent, Mutation(key, after(key), name, operand))

    @rule(pair=transactions, first=keys, second=keys)
    def add_read_conflict_range(self, pair: Any, first: bytes, second: bytes) -> None:
        tr, plain = pair
        begin, end = min(first, second), max(first, second)
        tr.add_read_conflict_range(self.own(begin), self.own(end))
        plain.has_read((begin, end))

    @rule(pair=transactions, first=keys, second=keys)
    def add_write_conflict_range(self, pair: Any, first: bytes, second: bytes) -> None:
        tr, plain = pair
        begin, end = min(first, second), max(first, second)
        tr.add_write_conflict_range(self.own(begin), self.own(end))
        if begin < end:
            plain.written.append((begin, end))

    @rule(pair=consumes(transactions))
    def commit(self, pair: Any) -> None:
        tr, plain = pair
        code = commit_code(tr)
        if code == 0:
            assert plain.may_commit(), "committed in spite of a conflict"
            # A silent write of another transaction may have changed an answer; the option allows that.
            assert self.silence or not plain.writes or plain.would_do_the_same_now(), "not serialisable"
            plain.commit()
        else:
            assert code == NOT_COMMITTED
            assert plain.may_fail(), "a conflict with nothing"

    @rule(pair=consumes(transactions), target=transactions)
    def reset(self, pair: Any) -> Any:
        tr, _ = pair
        tr.reset()
        tr.get_read_version().wait()
        return tr, self.model.begin()

    @rule(key=keys, value=values)
    def set_alone(self, key: bytes, value: bytes) -> None:
        """Write in a transaction of its own, so that the others can conflict with it."""
        self.database[self.own(key)] = value
        plain = self.model.begin()
        plain.write(Mutation(key, after(key), "set", value))
        plain.commit()

    @precondition(lambda self: len(self.model.commits) % 3 == 2)
    @invariant()
    def the_database_is_the_models(self) -> None:
        self.compare()

    def compare(self) -> None:
        tr = self.database.create_transaction()
        rows = tr.get_range(self.prefix, self.prefix + b"\xff")
        assert self.rows(rows) == sorted(self.model.latest.items())

    def teardown(self) -> None:
        self.compare()
        if self.guarded:
            self.database.clear_range_startswith(self.prefix)


@pytest.mark.parametrize("guarded", [False, True])
def test_programs_do_the_same_on_the_engine_and_on_the_model(engine, db, fdb_module, guarded):
    """Reads, commits and the contents agree for each program."""
    if engine == "fdb" and not guarded:
        pytest.skip("the whole key space of a cluster is not ours")

    class Machine(Programs):
        database = db.engine
        selector_class = fdb_module.KeySelector

    Machine.guarded = guarded
    if engine == "fdb":
        # FoundationDB's client lets a selector count a key that the transaction's own compare_and_clear has
        # removed, if it has read the key before: so its answers depend on what else was read.
        Machine.left_out = frozenset({"compare_and_clear"})
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=2_000 if SLOW else 80 if engine == "memory" else 20,
            stateful_step_count=60 if SLOW else 40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
