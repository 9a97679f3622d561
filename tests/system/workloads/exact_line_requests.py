"""Requests of the workload `exact_line`, and its looks at all items and requests."""

from functools import partial
from typing import Any

from fdbqueue.core.database import run
from fdbqueue.core.line.decision import Look, Otherwise, Reason
from fdbqueue.core.line.keys import Ticket
from fdbqueue.core.page import every_row
from fdbqueue.queues.recipe.queue import Queue
from tests.system.workloads.exact_calls import Caller, require_equal
from tests.system.workloads.exact_line_deeds import Deeds
from tests.system.workloads.exact_line_looks import Asked, looked, withdrawn
from tests.system.workloads.exact_line_values import Answer

REASONS = ("ARRIVAL", "SIGNAL", "SIGNAL", "NOTICE", "RENEWAL", "RENEWAL", "NEGLECT", "CONFLICT")
PAGE = 3


class Requests(Deeds):
    def __init__(self, caller: Caller, q: Queue) -> None:
        super().__init__(caller, q)
        self._line = q._recipe.part(0).line
        self._tickets: list[Ticket] = []

    def register(self) -> None:
        rid, count = self.caller.client.runtime.random_bytes(12), self.random.choice((1, 1, 2, 3))
        self._once(lambda tr: self._line.register(tr, rid, count, b"", self.model.now), is_alone=False)
        self._tickets.append(run(self.caller.client.db, lambda tr: self._line.find(tr, rid)))
        self.model.register(rid, count)

    def look(self) -> None:
        if not self._tickets:
            return
        ticket, choice = self.random.choice(self._tickets[-6:]), self.random.choice
        asked = Asked(ticket.rid, choice(REASONS), choice(("SLEEP", "SLEEP", "RENEW", "LEAVE")), 1)
        asked = asked._replace(wanted=choice((1, ticket.count)))
        found = self._once(partial(self._looked, ticket, asked), is_alone=False)
        require_equal(f"{asked}", found, looked(self.model, asked))
        self._over(ticket, found)

    def _looked(self, ticket: Ticket, asked: Asked, tr: Any) -> Answer:
        steps = Reason[asked.reason], Otherwise[asked.otherwise]
        turn = self._line.look(tr, ticket, Look(self.model.now, *steps, asked.wanted))
        for watch in turn.watches:
            watch.cancel()
        return turn.outcome.name, list(turn.answers)

    def withdraw(self) -> None:
        if self._tickets:
            ticket = self.random.choice(self._tickets[-6:])
            turn = self._once(lambda tr: self._line.withdraw(tr, ticket), is_alone=False)
            require_equal("withdraw", (turn.outcome.name, [*turn.answers]), withdrawn(self.model, ticket.rid))
            self._over(ticket, ("LEFT", []))

    def _over(self, ticket: Ticket, answer: Answer) -> None:
        self._taken += answer[1]
        if answer[0] in ("SERVED", "LEFT", "GONE") and self.random.random() < 0.9:
            self._tickets.remove(ticket)

    # Looks.

    def require_all(self) -> None:
        run(self.caller.client.db, self._require_all)

    def _require_all(self, tr: Any) -> None:
        items, q = [item.value for item in self.model.items], self.q
        require_equal("the items", self._listed(tr), items)
        told = (q.size(tr), q.empty(tr), q.peek(tr))
        require_equal("size, empty and the first", told, (len(items), not items, items[0] if items else None))
        rows = self._line.keys
        there = tr.snapshot.get_range(rows.requests.start, rows.requests.stop)
        rids = [rows.ticket_of(row.key, row.value)[0].rid for row in there]
        require_equal("the requests", rids, [request.rid for request in self.model.requests])
        due = [rows.due_of(row.key) for row in tr.snapshot.get_range(rows.due.start, rows.due.stop)]
        ready = sorted((one.until, rid) for rid, one in self.model.ready.items())
        require_equal("what lies ready", [(one.deadline_us, one.rid) for one in due], ready)

    def _listed(self, tr: Any) -> list[str]:
        return list(every_row(partial(self.q.items, tr, PAGE)))
