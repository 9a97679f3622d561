"""The auditor: hears of each commit, and tells the rules of each queue which of its keys have changed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from fdb import tuple as layer

from fdbqueue.core import root_keys
from fdbqueue.core.errors import FdbQueueError
from fdbqueue.core.partitions import Plan, plan_of
from fdbqueue.core.registry import Definition, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.embedded.store import Store
from fdbqueue.embedded.writes import CommitRequest
from fdbqueue.operate.verify.partitions import RecipeChecks
from fdbqueue.operate.verify.root import RootChecks
from fdbqueue.operate.verify.tasks import TaskChecks
from fdbqueue.operate.verify.verify import AnyQueue, Subject, partition_subject, subject_named, subject_of
from fdbqueue.tasks.stored.records import OWNERS
from fdbqueue.testing.trace import Commit, Trace
from tests.system.audit.agreement import (
    Agreement,
    Ended,
    LimitRules,
    Receipts,
    Sessions,
    changed_unseen_in_root,
    ends_counted,
    lost_in_root,
)
from tests.system.audit.items import HandedLocks, PartitionedItems
from tests.system.audit.line import Liveness
from tests.system.audit.model import Mirror, Step, Values
from tests.system.audit.rules import Partitioned, QueueRules, late_in
from tests.system.audit.steered import taken_after_the_answer
from tests.system.audit.tasks import History

VIOLATIONS_MAX = 5
Rules = QueueRules | Partitioned | PartitionedItems


class Auditor:
    """Judges the commits of one simulation, in their order."""

    def __init__(self, liveness: Liveness, hear: Callable[[Commit, Mirror], None]) -> None:
        """`hear` is called with each commit, and the rows after it."""
        self.violations: list[str] = []
        self._hear = hear
        self.handed = HandedLocks()
        self.mirror = Mirror()
        self._registry = Registry(DEFAULT_ROOT)
        root = self._registry.keys
        self._root = Agreement(RootChecks(self._registry), root.prefix, root.all_contents)
        self._liveness = liveness
        self._sessions = Sessions(self._registry.keys, self._is_member, self._liveness)
        self._limits = LimitRules(self._registry.keys)
        self._receipts = Receipts()
        self._named: dict[int, Rules] = {}
        self._prefixes: dict[int, bytes] = {}
        """The prefixes of the queues that have definitions, by their ids."""
        self._spaces: list[QueueRules] = []
        self.spaces: list[AnyQueue] = []
        """The queues over subspaces."""

    def watch(self, queues: Sequence[AnyQueue]) -> None:
        """Judge these queues over subspaces, too. Those with names are found by their definitions."""
        self.spaces += queues
        self._spaces += [
            QueueRules(subject_of(queue), self._liveness, registered=False, handed=self.handed)
            for queue in queues
        ]

    def untrue_in(self, trace: Trace) -> Iterator[str]:
        """Check the answers of a whole run."""
        if self._liveness.is_calm():
            yield from late_in(trace)
        for rules in self._named.values():
            if isinstance(rules, QueueRules):
                yield from rules.untrue_in(trace)

    def committed(self, store: Store, request: CommitRequest, commit: Commit) -> None:
        """Judge the last commit of the store."""
        with store.begin() as txn:
            changes = self.mirror.follow(txn, request)
        self._hear(commit, self.mirror)
        if len(self.violations) >= VIOLATIONS_MAX:
            return
        cleared = list(request.buffer.cleared)
        for text in self._judge(commit, changes, cleared):
            self.violations.append(f"{commit}: {text}")

    def _judge(
        self, commit: Commit, changes: dict[bytes, Values], cleared: Sequence[tuple[bytes, bytes]]
    ) -> Iterator[str]:
        root = {key: values for key, values in changes.items() if self._is_of_root(key)}
        if root:
            self._define(root)
            step = Step(commit, root, cleared, [key for key in self.mirror.unseen if key in root])
            told = chain(
                self._root.judge(step, self.mirror),
                self._sessions.judge(step),
                self._limits.judge(step, self.mirror),
                changed_unseen_in_root(self._registry.keys, step),
                lost_in_root(self._registry.keys, step),
            )
            yield from (f"the root: {text}" for text in told)
        receipts = {key: values for key, values in changes.items() if self._is_receipt(key)}
        yield from self._receipts.judge(Step(commit, receipts))
        ended = list[Ended]()
        for rules in (*self._named.values(), *self._spaces):
            part = {key: values for key, values in changes.items() if key.startswith(rules.prefix)}
            if part:
                unseen = [key for key in self.mirror.unseen if key in part]
                kept = [key for key in self.mirror.kept if key.startswith(rules.prefix)]
                yield from rules.judge(Step(commit, part, cleared, unseen, kept), self.mirror)
                ended.append(rules.ended)
        if root or ended:
            in_all = Ended(*map(sum, zip(Ended(), *ended, strict=True)))
            yield from ends_counted(self._registry.keys, Step(commit, root), in_all)
        yield from self._orphans(changes)
        prefixes = self._prefixes.values()
        yield from taken_after_the_answer(self._registry.keys, prefixes, changes, self.mirror)

    def _is_of_root(self, key: bytes) -> bool:
        """True for a key under the root that belongs to no queue. Receipts have nothing to agree with."""
        keys = self._registry.keys
        if not key.startswith(keys.prefix) or self._is_receipt(key):
            return False
        return not keys.all_contents.start <= key < keys.all_contents.stop

    def _is_receipt(self, key: bytes) -> bool:
        under = self._registry.keys.receipts
        return bool(under.start <= key < under.stop)

    def _orphans(self, changes: dict[bytes, Values]) -> Iterator[str]:
        contents = self._registry.keys.all_contents
        prefixes = tuple(self._prefixes.values())
        for key, values in changes.items():
            is_named = contents.start <= key < contents.stop
            if is_named and values.after is not None and not key.startswith(prefixes):
                yield f"a key of a queue that does not exist (key {key.hex()})"

    def _is_member(self, session: bytes) -> bool:
        """True if the session is enrolled for an owner of a persistent queue."""
        member = layer.pack((session,))
        owners = (prefix + OWNERS.code for prefix in self._prefixes.values())
        return any(
            key.endswith(member) for under in owners for key in self.mirror.keys_in(under, under + b"\xff")
        )

    def _define(self, changes: dict[bytes, Values]) -> None:
        """Know the queues that are created and dropped, and their plans."""
        for key, values in changes.items():
            column, rest = self._registry.keys.shape_of(key)
            if column == root_keys.DEFINITION:
                known, old = None, _listed(rest[0], values.before)
                if old is not None:
                    known = self._forget(old)
                new = _listed(rest[0], values.after)
                if new is not None:
                    self._know(new, known if old is not None and old.id == new.id else None)

    def _forget(self, definition: Definition) -> Rules | None:
        self._prefixes.pop(definition.id, None)
        return self._named.pop(definition.id, None)

    def _know(self, definition: Definition, known: Rules | None) -> None:
        """`known`: the rules of the queue, if its plan has changed."""
        self._prefixes[definition.id] = self._registry.contents(definition).key()
        with suppress(FdbQueueError):  # of another release: a verification tells of it
            subject = subject_named(self._registry, definition)
            plan = plan_of(definition)
            if isinstance(known, QueueRules) and plan is None and known.follows(definition):
                self._named[definition.id] = known
            elif subject is not None:
                self._named[definition.id] = self._rules_of(subject, plan, known)

    def _rules_of(self, subject: Subject, plan: Plan | None, known: Rules | None) -> Rules:
        """The rules of a named queue. If only its plan has changed, its rules go on."""
        checks, queue = subject.checks, subject.partitioned
        if isinstance(checks, RecipeChecks) and queue is not None:
            items = (
                known
                if isinstance(known, PartitionedItems)
                else PartitionedItems(subject, queue, self._liveness)
            )
            items.follow(subject, plan)
            return items
        history = known.history if isinstance(known, QueueRules | Partitioned) else History(self._liveness)
        if isinstance(checks, TaskChecks) and checks.shape.plan is not None:
            return Partitioned(subject, partition_subject, history)
        return QueueRules(subject, self._liveness, registered=True, history=history, handed=self.handed)


def _listed(name: str, stored: bytes | None) -> Definition | None:
    return None if stored is None else Definition.listed(name, stored)
