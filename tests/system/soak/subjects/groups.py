"""Groups: the task of `then` starts once, when all members have ended.

    group    members and then   a group is made, and closed, in one transaction
    open     then               an open group is made
    close    label              the group takes no more members
    cancel   label              its members and its `then` end by sweeps

The label of a group is the key of its values: "w0.7/0" is a member of the group "w0.7", "w0.7/then" its task.
"""

from collections.abc import Iterator
from functools import partial

from fdbqueue.core.page import every_row
from fdbqueue.core.seam import Transaction
from fdbqueue.core.transactional import transactional
from fdbqueue.tasks.groups import Group, group, list_groups
from tests.system.soak.client import Client
from tests.system.soak.evidence import Evidence, key_of
from tests.system.soak.rules import LEASED, found, lost, lost_but
from tests.system.soak.subjects.leases import Leased

THEN = "then"


def lost_but_cancelled(evidence: Evidence) -> Iterator[str]:
    cancelled = {call.argument for call in evidence.named("cancel")}
    return lost_but(evidence, lambda value: key_of(value) in cancelled)


def each_then(evidence: Evidence) -> Iterator[str]:
    """The task of each closed group has ended, if the group was not cancelled."""
    cancelled = {call.argument for call in evidence.named("cancel")}
    closed = {call.argument for call, _ in evidence.succeeded("close")} - cancelled
    ended = {value for value, count in evidence.apart.items() if count} | set(evidence.stored.effects)
    ended |= evidence.perhaps_acked | set(evidence.stored.left)
    yield from found("no then", {f"{label}/{THEN}" for label in closed} - ended)


def then_is_last(evidence: Evidence) -> Iterator[str]:
    """The task of `then` is not given before each member has ended."""
    first_us: dict[str, int] = {}
    for taken in evidence.taken:
        if taken.value.endswith(f"/{THEN}"):
            label = key_of(taken.value)
            first_us[label] = min(taken.end_us, first_us.get(label, taken.end_us))
    for value, calls in evidence.ends.items():
        given_us = first_us.get(key_of(value))
        is_member = not value.endswith(f"/{THEN}")
        if given_us is not None and is_member and min(call.begin_us for call in calls) > given_us:
            yield f"then was given before the end of {value}"


class Groups(Leased):
    name = "groups"
    rules = (*(lost_but_cancelled if rule is lost else rule for rule in LEASED), each_then, then_is_last)
    has_order = False

    def put(self, client: Client, count: int) -> None:
        [label] = client.values(1)
        members = [f"{label}/{number}" for number in range(count)]
        if client.chance(0.5):
            values = [*members, f"{label}/{THEN}"]
            client.call(self.name, "group", values, lambda: self._make(client, label, members))
        else:
            self._fill(client, label, members)

    def _make(self, client: Client, label: str, members: list[str]) -> None:
        mark = self.setup.space["groups"][label].key()

        @transactional
        def make(tr: Transaction) -> None:
            if tr.get(mark).present():
                return  # an earlier attempt, with an unknown result, has made it
            tr.set(mark, b"")
            with group(tr, then=(self.queue, f"{label}/{THEN}"), root=self.setup.queues) as made:
                made.put_many(self.queue, members)

        make(client.db)

    def _fill(self, client: Client, label: str, members: list[str]) -> None:
        """Make a group in several transactions. After a kill in between, the end of the soak closes it."""
        then = f"{label}/{THEN}"
        made = client.call(self.name, "open", [then], lambda: self._create(client, then))
        if made is None:
            return
        half = len(members) // 2
        for values in filter(None, (members[:half], members[half:])):
            client.call(self.name, "put", values, partial(made.put_many, client.db, self.queue, values))
        verb = "cancel" if client.chance(0.1) else "close"
        client.call(self.name, verb, label, lambda: getattr(made, verb)(client.db))

    def _create(self, client: Client, then: str) -> Group:
        return Group.create(client.db, then=(self.queue, then), root=self.setup.queues)

    def settle(self, client: Client) -> None:
        for told in every_row(partial(list_groups, client.db, 100, root=self.setup.queues)):
            if told.open and told.then is not None:
                self._close(client, told.id, told.then)

    def _close(self, client: Client, id_: str, then: str) -> None:
        label, made = key_of(self.queue.peek(client.db, then).data), Group(id_, root=self.setup.queues)
        client.call(self.name, "close", label, lambda: made.close(client.db))
