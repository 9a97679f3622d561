"""Overview: the figures of all queues under a root, or of some, in one or two round trips.

    round trip 1   the definitions, the workers, and the queues that the last look has found; the limits,
                   schedules and groups
    round trip 2   queues that were created, or created again, since that look; at the first look, all

A queue is read below the prefix of its definition, which the definition alone tells. So a look guesses that
the definitions have not changed, and reads them in the same snapshot.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_count, checked_whole, writable
from fdbqueue.core.database import Handle, as_database, at_pace, is_transaction, run
from fdbqueue.core.registry import Registry, checked_name
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.runtime import Runtime
from fdbqueue.core.seam import DatabaseOrTransaction, Transaction
from fdbqueue.core.sessions.workers import LiveWorkers, ask_all_workers
from fdbqueue.operate.figures import Beside, Figures, Look, QueueFigures, RootLook, limits_of, look_at


class _Known(NamedTuple):
    """A stored definition, and the look that was made for it."""

    stored: bytes
    look: Look


class _Part(NamedTuple):
    """The figures of at most limits.FIGURES_QUEUES queues, and the key from which on more may follow."""

    now_us: int
    queues: list[QueueFigures]
    known: dict[str, _Known]
    workers: LiveWorkers
    next: bytes | None
    beside: Beside | None
    """None behind the first part."""


class Overview(Handle):
    """The figures of the queues with these names, or of all queues under the root if no name is given.

    It remembers the queues of its last look, which makes the next look one round trip. Threads may share it.
    """

    __slots__ = ("_beside", "_keys", "_known", "_limit", "_names", "_registry")

    def __init__(
        self,
        *names: str,
        keys: int = 10,
        limit: int = limits.QUEUES_LISTED_MAX,
        queues_only: bool = False,
        root: Any = DEFAULT_ROOT,
    ) -> None:
        """`keys` is the number of busiest task keys that are told of a queue with task keys. `limit` is the
        largest number of queues; the first ones by name are told. `queues_only`: if true, limits, schedules
        and groups are not looked at.

        Raises: InvalidArgument, WrongType.
        """
        self._registry = Registry(root)
        self._names = sorted({checked_name(name) for name in names})
        self._keys = checked_whole("keys", keys, 0, limits.FIGURES_KEYS_MAX)
        self._limit = checked_count("limit", limit, limits.QUEUES_LISTED_MAX)
        self._known: dict[str, _Known] = {}
        self._beside = None if queues_only else RootLook(self._registry.keys)

    def _shown(self) -> dict[str, Any]:
        return {"names": self._names}

    def figures(self, tr: DatabaseOrTransaction) -> Figures:
        """The figures of the queues that exist now. It sweeps nothing, so a `sweep_lag_s` that grows shows.

        Given a database, each limits.FIGURES_QUEUES queues are one transaction.
        Reads: by snapshot; of each partition its counters, and the first entry of three indexes; the first
            tasks of the task keys that the last look has told; the limits, schedules and groups, up to
            limits.FIGURES_LIMITS, FIGURES_SCHEDULES and FIGURES_GROUP_ROWS; at most twice
            limits.RECEIPTS_SWEPT_MAX receipts.
        Conflicts: none.
        Round trips: 1 if no queue or limit was created since the last look, else 2; for each
            limits.FIGURES_QUEUES queues.
        """
        runtime = as_database(tr.db if is_transaction(tr) else tr).runtime
        tr = at_pace(tr, "look")
        random = runtime.random_bytes(limits.RANDOM_SUFFIX_BYTES)
        parts = [run(tr, partial(self._part, runtime, random, None, self._limit, None))]
        left = self._limit - len(parts[0].queues)
        while left > 0 and (begin := parts[-1].next) is not None:
            parts.append(run(tr, partial(self._part, runtime, random, begin, left, parts[0].workers)))
            left -= len(parts[-1].queues)
        self._known = {name: known for part in parts for name, known in part.known.items()}
        queues = tuple(queue for part in parts for queue in part.queues)
        workers = parts[0].workers
        found = Figures(parts[0].now_us / 1_000_000, queues, workers.total, parts[-1].next is None)
        return self._with_beside(replace(found, clock_difference_s=workers.clock_s), parts[0].beside)

    def _with_beside(self, found: Figures, beside: Beside | None) -> Figures:
        if beside is None:
            return found
        told, is_whole = limits_of(beside.limits, found.queues), found.is_whole and beside.is_whole
        schedules, groups = beside.schedules, beside.groups
        if self._names:
            told, groups = [one for one in told if one.queues], found.groups
            schedules = [one for one in schedules if one.queue in self._names]
        return replace(
            found,
            is_whole=is_whole,
            limits=(*told,),
            schedules=(*schedules,),
            groups=groups,
            stale_receipts=beside.stale_receipts,
        )

    def _part(
        self,
        runtime: Runtime,
        random: bytes,
        begin: bytes | None,
        limit: int,
        alive: LiveWorkers | None,
        tr: Transaction,
    ) -> _Part:
        """At most `limit` queues from the key `begin` on; the first part reads which workers are alive."""
        limit = min(limit, limits.FIGURES_QUEUES)
        tr, now_us, keys = writable(tr), runtime.now_us(), self._registry.keys
        begin = keys.definitions.start if begin is None else begin
        stored = self._ask_stored(tr, begin, limit)
        workers = ask_all_workers(tr.snapshot, keys, now_us) if alive is None else lambda: alive
        beside = None
        if self._beside is not None and alive is None:
            beside = self._beside.ask(tr.snapshot, now_us, random)
        guessed = {name: (known, known.look(tr, now_us)) for name, known in self._guess(begin, limit)}
        definitions, following = stored()
        known, replies = {}, []
        for name, value in definitions.items():
            guess = guessed.get(name)
            if guess is not None and guess[0].stored == value:
                known[name], reply = guess
            else:
                known[name] = _Known(value, look_at(self._registry, name, value, self._keys))
                reply = known[name].look(tr, now_us)
            replies.append(reply)
        seen = None if beside is None else beside()  # it may ask once more, together with the queues
        live = workers()
        return _Part(now_us, [reply(live) for reply in replies], known, live, following, seen)

    def _ask_stored(
        self, tr: Transaction, begin: bytes, limit: int
    ) -> Callable[[], tuple[dict[str, bytes], bytes | None]]:
        if not self._names:
            return self._registry.ask_stored(tr, begin, limit)
        keys = {name: self._registry.keys.definition(name) for name in self._names}
        wanted = [name for name, key in keys.items() if key >= begin]
        asked = {name: tr.snapshot.get(keys[name]) for name in wanted[:limit]}
        following = keys[wanted[limit]] if len(wanted) > limit else None
        return lambda: ({name: one.value for name, one in asked.items() if one.present()}, following)

    def _guess(self, begin: bytes, limit: int) -> list[tuple[str, _Known]]:
        known = self._known.items()
        ahead = (one for one in known if self._registry.keys.definition(one[0]) >= begin)
        return list(islice(ahead, limit))
