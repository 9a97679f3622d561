"""A consumer that is written from docs/consumers.md leaves the keys of the vectors."""

import sys
from collections import Counter

from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate.conformance import Program, Verdict, checked, stored_vectors, vectors_in
from tests.layout.consumer_answers import VERBS

PATIENCE_S = 60.0
STORED = stored_vectors()
OF_CONSUMERS = [one for one in vectors_in(STORED) if one.kind in ("fifo", "fifottl") and one.verb in VERBS]


def test_a_consumer_written_from_the_page_conforms():
    argv = [sys.executable, "-m", "tests.layout.consumer_answers"]
    start = lambda: Program(argv, PATIENCE_S, RealRuntime())  # noqa: E731
    found = [*checked(start, STORED["root"], OF_CONSUMERS)]
    assert {one.vector.name: one.differences for one in found if one.differences} == {}
    same = Counter(one.vector.verb for one in found if one.verdict == Verdict.SAME)
    assert set(same) == set(VERBS)
    left = {one.vector.name.partition("#")[0] for one in found if one.verdict == Verdict.UNSUPPORTED}
    assert left <= {"fifo", "fifottl", "fifo-options", "fifottl-unique", "fifo-groups", "fifo-limits"} | {
        "fifo-with-partitions",
        "fifo-unique-windows",
        "fifottl-unique-scopes",
    }
