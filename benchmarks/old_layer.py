"""The queue of FoundationDB's old Python layers (2013), written anew to compare with: same keys, same steps.

    ("item", index, random) -> an item        ("pop", index, random) -> a pop that waits
    ("conflict", random) -> the item of that pop

The strings are byte strings, as Python 2 wrote them.

A push puts its item one behind the last; the random part keeps pushes of one moment apart. A *simple* pop
takes the first item and conflicts with every other. A *high-contention* pop tries that once. If it loses,
or others wait already, it registers. Then, like all waiting pops, it pairs the first hundred pops with the
first hundred items again and again, and sleeps in between for a time that doubles, until its own item is
there.
"""

from fdb import tuple as layer
from fdb.subspace_impl import Subspace

import fdbqueue
from fdbqueue.core.observing import NOT_COMMITTED
from fdbqueue.core.seam import Transaction, engine_errors

_PAIRED_TOGETHER = 100
_BACK_OFF_FIRST_S, _BACK_OFF_MAX_S = 0.01, 1.0


class OldQueue:
    def __init__(self, db: fdbqueue.Database, space: Subspace) -> None:
        self._db = db
        self._items, self._pops, self._results = space[b"item"], space[b"pop"], space[b"conflict"]

    def push(self, value: str) -> None:
        random = self._db.runtime.random_bytes(20)

        @fdbqueue.transactional
        def body(tr: Transaction) -> None:
            tr.set(self._next(tr, self._items, random), layer.pack((value,)))

        body(self._db)

    def pop_simple(self) -> str | None:
        @fdbqueue.transactional
        def body(tr: Transaction) -> bytes | None:
            return self._first(tr)

        return decoded(body(self._db))

    def pop_contended(self) -> str | None:
        random = self._db.runtime.random_bytes(20)
        tr = self._db.create_transaction()
        try:
            if not self._anyone_waits(tr):
                value = self._first(tr)
                tr.commit().wait()
                return decoded(value)
        except engine_errors() as error:
            if error.code != NOT_COMMITTED:
                raise
        return decoded(self._wait(self._register(random)))

    def _first(self, tr: Transaction) -> bytes | None:
        whole = self._items.range()
        for item in tr.get_range(whole.start, whole.stop, limit=1):
            tr.clear(item.key)
            return bytes(item.value)
        return None

    def _next(self, tr: Transaction, space: Subspace, random: bytes) -> bytes:
        whole = space.range()
        last = tr.snapshot.get_range(whole.start, whole.stop, limit=1, reverse=True).to_list()
        index = space.unpack(last[0].key)[0] + 1 if last else 0
        return bytes(space.pack((index, random)))

    def _anyone_waits(self, tr: Transaction) -> bool:
        whole = self._pops.range()
        return bool(tr.snapshot.get_range(whole.start, whole.stop, limit=1).to_list())

    def _register(self, random: bytes) -> bytes:
        @fdbqueue.transactional
        def body(tr: Transaction) -> bytes:
            key = self._next(tr, self._pops, random)
            tr.add_read_conflict_key(key)
            tr.set(key, b"")
            return key

        return body(self._db)

    def _wait(self, pop: bytes) -> bytes | None:
        back_off_s = _BACK_OFF_FIRST_S
        while True:
            self._serve()
            done, value = self._collect(pop)
            if done:
                return value
            self._db.runtime.sleep(back_off_s)
            back_off_s = min(2 * back_off_s, _BACK_OFF_MAX_S)

    def _serve(self) -> None:
        """Until fewer than a hundred pops wait; the loser of a race leaves the rest to the winner."""
        tr = self._db.create_transaction()
        while True:
            try:
                paired = self._pair(tr)
                tr.commit().wait()
            except engine_errors() as error:
                if error.code == NOT_COMMITTED:
                    return
                tr.on_error(error).wait()
                continue
            if paired < _PAIRED_TOGETHER:
                return
            tr.reset()

    def _pair(self, tr: Transaction) -> int:
        pops, items = (
            tr.snapshot.get_range(whole.start, whole.stop, limit=_PAIRED_TOGETHER)
            for whole in (self._pops.range(), self._items.range())
        )
        waiting, there = pops.to_list(), items.to_list()
        for number, pop in enumerate(waiting):
            tr.add_read_conflict_key(pop.key)
            tr.clear(pop.key)
            if number < len(there):
                item = there[number]
                tr.add_read_conflict_key(item.key)
                tr.set(self._result_of(pop.key), item.value)
                tr.clear(item.key)
        return len(waiting)

    def _collect(self, pop: bytes) -> tuple[bool, bytes | None]:
        @fdbqueue.transactional
        def body(tr: Transaction) -> tuple[bool, bytes | None]:
            waits, result = tr.get(pop), tr.get(self._result_of(pop))
            if waits.present():
                return False, None
            value = result.value
            tr.clear(self._result_of(pop))
            return True, None if value is None else bytes(value)

        return body(self._db)

    def _result_of(self, pop: bytes) -> bytes:
        _, random = self._pops.unpack(pop)
        return bytes(self._results.pack((random,)))


def decoded(value: bytes | None) -> str | None:
    return None if value is None else str(layer.unpack(value)[0])
