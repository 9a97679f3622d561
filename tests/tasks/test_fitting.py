"""Verbs about many tasks, whose batches become smaller if they are too large for a transaction."""

import pytest

from fdbqueue.core import limits
from fdbqueue.embedded import FDBError
from fdbqueue.tasks.in_all import in_batches

TOO_LARGE, TOO_OLD = 2101, 1007


def test_a_batch_that_is_too_large_is_halved_until_it_fits() -> None:
    left = [limits.VERB_BATCH]

    def step(count: int) -> int:
        if count > limits.VERB_BATCH // 4:
            raise FDBError(TOO_LARGE)
        found = min(count, left[0])
        left[0] -= found
        return found

    assert list(in_batches(step)) == [limits.VERB_BATCH // 4] * 4


@pytest.mark.parametrize(("code", "calls"), [(TOO_LARGE, 8), (TOO_OLD, 1)])
def test_a_batch_that_fails_alone_or_otherwise_raises_its_error(code: int, calls: int) -> None:
    asked = []

    def step(count: int) -> int:
        asked.append(count)
        raise FDBError(code)

    with pytest.raises(FDBError):
        next(in_batches(step))
    assert len(asked) == calls
