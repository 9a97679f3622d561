"""A queue whose partitions become more and fewer, with task keys that leave their old partition."""

from typing import Any

from fdbqueue.core.arguments import key_bytes
from fdbqueue.core.database import run
from fdbqueue.core.partitions.plan import home_of
from fdbqueue.core.sessions.keeper import keeper_of
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_calls import Call
from tests.system.workloads.paired_table import Table
from tests.system.workloads.paired_task_calls import KEYED, ROOT
from tests.system.workloads.paired_tasks import Tasks

COUNTS, FEW, KEYS = (1, 2, 3), 3, "abcd"


class Moves(Table, Tasks):
    verbs = (
        "put",
        "take",
        "use_a_lease",
        "by_id",
        "kick",
        "tick",
        "repartition",
        "many",
    )
    topped_up = 0.8
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        *(("utube", {}), ("utubettl", {"ttr": 2}), ("fair", {}), ("fair", {"capacity": 5})) * 3,
        ("utube", {"key_concurrency": 2}),
        ("fifo", {}),
        ("limfifottl", {"capacity": 4}),
        ("bag", {}),
    )
    _moved = "a"

    def _drawn_options(self) -> dict[str, Any]:
        choice = self.random.choice
        return {"partitions": choice(COUNTS), **choice(({}, {}, {"retain_s": 5.0}))}

    def must_forget(self, one: Call, other: Call) -> bool:  # noqa: ARG002  # a process remembers the plan
        return True

    def _key(self) -> str:
        return self._moved if self.random.random() < 0.7 else super()._key()

    def top_up(self) -> None:
        """Begin a repartition, with one taken task of a key in its old partition."""
        own, q = self.twins.own, self.own.q
        if len(self.now_there) > FEW:
            q.truncate(own)
        for _ in range(2):  # the first one may end a repartition
            q.paused(own)
            keeper_of(own, ROOT).tick()
        now, count = self._count(), self.random.choice(COUNTS)
        self._moved = self.random.choice([key for key in KEYS if moves(key, now, count)] or KEYS)
        options: dict[str, Any] = {"key": self._moved} if self.kind in KEYED else {}
        caught(lambda db: q.put_many(db, self.data(self.random.choice((1, 1, 2))), **options), own)
        q.resume(own)
        self.learn(q.take_many(own, 1, session=self.sessions[0]))
        if count != now:
            caught(lambda db: run(db, lambda tr: q.repartition(tr, count)), own)

    def _count(self) -> int:
        plan = self.own.q._calls(self.twins.own).parts.plan
        return 1 if plan is None else plan.count


def moves(key: str, before: int, after: int) -> bool:
    packed = key_bytes(key)
    return home_of(packed, before) != home_of(packed, after)
