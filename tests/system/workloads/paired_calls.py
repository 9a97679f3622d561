"""The calls of the workload `paired`, and how answers and looks of two orders are compared.

Random parts of ids differ from order to order, so tasks are named by their data, which is unique in a run.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, NamedTuple

from fdbqueue.core.database import Database, run
from fdbqueue.core.seam import Transaction
from fdbqueue.core.task import Task
from tests.system.workloads.exact_calls import caught
from tests.system.workloads.paired_store import Rows

Verb = Callable[[Any, Any], Any]
"""Of the handles of a process, and its database or a transaction."""


@dataclass(frozen=True)
class Call:
    """A call with fixed arguments. `adds`: its new data, in any order beside the new data of another call.
    `within`: true if it happens in a transaction of its caller. `touches`: the task, or None.
    """

    name: str
    text: str
    verb: Verb
    adds: Sequence[str] = ()
    within: bool = False
    touches: Any = None
    alone: bool = False
    parts: Sequence["Call"] = ()
    """The calls of which it is made, one after the other."""

    def __str__(self) -> str:
        return f"{self.text} in a transaction" if self.within else self.text

    def answer(self, handles: Any, db: Database) -> Any:
        if self.within:
            return caught(lambda target: run(target, partial(self.verb, handles)), db)
        return caught(partial(self.verb, handles), db)


NO_CALL = Call("", "", lambda *_: None)
"""In place of the second call where there is none."""


def both(one: Call, other: Call) -> Call:
    """Two calls in one transaction of their caller."""

    def verb(handles: Any, tr: Transaction) -> list[Any]:
        return [caught(partial(call.verb, handles), tr) for call in (one, other)]

    adds = (*one.adds, *other.adds)
    return Call("both", f"({one.text} and {other.text})", verb, adds, within=True, touches=one.touches)


def chain(first: Call, then: Call) -> Call:
    """Two calls of one process, each in transactions of its own."""
    text = f"{first}, and then {then}"
    return Call("chain", text, then.verb, (*first.adds, *then.adds), alone=True, parts=(first, then))


Look = Mapping[str, Sequence[str]]
"""The texts of all looks at a store, by the name of the look. Those under "order ..." are in an order."""


class Outcome(NamedTuple):
    """The answers of both calls, and the rows that they left."""

    answers: tuple[Any, Any]
    rows: Rows


def data_of(answers: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The ids of the tasks in these answers, and their data."""
    for answer in answers:
        if isinstance(answer, Task) and answer.data is not None:
            yield answer.id, str(answer.data)
        elif isinstance(answer, list | tuple):
            yield from data_of(answer)


def shown(answer: Any) -> str:
    """The answer as a text, without its random parts."""
    if isinstance(answer, Task):
        return _task_shown(answer)
    if isinstance(answer, list):
        return f"[{', '.join(map(shown, answer))}]"
    return f"{type(answer).__name__}: {answer}" if isinstance(answer, Exception) else repr(answer)


def _task_shown(task: Task) -> str:
    """The fields that are not those of a new task."""
    told = {item.name: getattr(task, item.name) for item in fields(task) if item.repr}
    usual = {item.name: item.default for item in fields(task)}
    unusual = {name: value for name, value in told.items() if value != usual[name] and value not in ({}, ())}
    unusual |= {name: "some" for name in ("token", "waits_for") if name in unusual}
    if task.groups:
        unusual["groups"] = len(task.groups)
    return f"<{' '.join(f'{name}={value}' for name, value in unusual.items())}>"


def named(text: str, names: Mapping[str, str]) -> str:
    """The text with the data of tasks in place of their ids."""
    if not names:
        return text
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)


def in_order(name: str, lines: Sequence[str]) -> Sequence[str]:
    """The lines of a look; sorted, unless they are an order."""
    return lines if name.startswith("order") else sorted(lines)


def unlikeness(found: Look, wanted: Look, one: Call, other: Call) -> str | None:
    """The first difference of two looks; None if they are equal."""
    for name in (*wanted, *(name for name in found if name not in wanted)):
        for left, right in _readings(name, found.get(name, ()), wanted.get(name, ()), one, other):
            if left != right:
                return f"{name} is {_unlike(left, right)}, and in that order {_unlike(right, left)}"
    return None


def _readings(
    name: str, found: Sequence[str], wanted: Sequence[str], one: Call, other: Call
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """New data of both calls may come in any order to each other, so it is compared without the one, and
    without the other.
    """
    if not name.startswith("order") or not one.adds or not other.adds:
        yield found, wanted
        return
    for call in (one, other):
        left, right = ([data for data in side if data not in call.adds] for side in (found, wanted))
        yield left, right


def _unlike(some: Sequence[str], others: Sequence[str]) -> str:
    """The parts of a look that differ."""
    unlike = [text for text in some if text not in others]
    return ", ".join(unlike or some) or "nothing"
