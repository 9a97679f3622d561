"""The report of a failed run: its violations, and the transactions of its trace that matter.

A transaction matters if its operation, or a value that it writes, names a value of a violation. It also
matters if it wrote a key that such a transaction wrote. A key that a third of all transactions write (a
counter, a doorbell) does not count here: it would connect all of them.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from fdb import tuple as layer

from fdbqueue.testing.simulation import Result
from fdbqueue.testing.trace import Footprint, Operation, Trace

_COMMON_SHARE = 1 / 3
_SHOWN_CHARS = 60
_VALUES_MAX = 12


def described(result: Result) -> str:
    """Return the whole report; `result` must come from a detailed run."""
    subjects = re.findall(r"'([^']+)'", " ".join(result.violations))[:_VALUES_MAX]
    matters = _that_matter(result.trace, subjects)
    lines = [
        f"seed {result.seed}: {len(result.violations)} violations",
        *(f"  * {v}" for v in result.violations),
        f"bounds: {', '.join(f'{name}={value:g}' for name, value in result.bounds.items()) or 'as always'}",
    ]
    lines += ["", f"{len(matters)} of {len(result.trace.transactions)} transactions matter:", ""]
    return "\n".join([*lines, *_story(result.trace, matters, subjects)])


def _names(operation: Operation | None, subjects: list[str]) -> bool:
    if operation is None:
        return False
    words = f"{operation.argument!r} {operation.result!r}"
    return any(f"'{subject}'" in words for subject in subjects)


def _that_matter(trace: Trace, subjects: list[str]) -> set[int]:
    """Return the positions of the transactions that matter; of all, if the violations name no value."""
    everything = set(range(len(trace.transactions)))
    if not subjects:
        return everything
    writers: dict[bytes, set[str]] = {}
    uses: Counter[bytes] = Counter()
    for tr in trace.transactions:
        for key in {key for _, key, _ in tr.writes}:
            uses[key] += 1
            writers.setdefault(key, set()).add(tr.who.partition("/")[0])
    # A key that one machine writes alone (a receipt) does not connect it with another one.
    telling = {
        key
        for key, count in uses.items()
        if len(writers[key]) > 1 and count <= len(trace.transactions) * _COMMON_SHARE
    }
    about = {i for i in everything if _is_about(trace.transactions[i], subjects)}
    keys = {key for i in about for _, key, _ in trace.transactions[i].writes} & telling
    touching = {i for i in everything if any(key in keys for _, key, _ in trace.transactions[i].writes)}
    return about | touching or everything


def _is_about(transaction: Footprint, subjects: list[str]) -> bool:
    if _names(transaction.operation, subjects):
        return True
    values = [value for _, _, value in transaction.writes if isinstance(value, bytes)]
    return any(subject.encode() in value for subject in subjects for value in values)


def _story(trace: Trace, matters: set[int], subjects: list[str]) -> Iterator[str]:
    transactions = iter(enumerate(trace.transactions))
    told = {op.client for i in matters if (op := trace.transactions[i].operation)} | {
        op.client for op in trace.operations if _names(op, subjects)
    }
    for at_s, who, what, particulars in trace.events:
        if what.startswith("transaction "):
            position, transaction = next(transactions)
            if position in matters:
                yield from _transaction_lines(transaction)
        elif who in told or (what == "fault" and any(client.startswith(f"{who}/") for client in told)):
            yield f"{at_s:10.4f}  {who:<16} {what} {shortened(' '.join(map(repr, particulars)))}"


def _transaction_lines(transaction: Footprint) -> Iterator[str]:
    yield (
        f"{transaction.at_s:10.4f}  {transaction.who:<16} transaction {transaction.number} "
        f"{transaction.outcome}"
    )
    lines = (
        f"{what} {readable(key)}{_assigned(value)}"
        for what, key, value in [*transaction.reads, *transaction.writes]
    )
    yield from (f"{'':12}{'':16} | {line}" for line in dict.fromkeys(lines))


def _assigned(value: Any) -> str:
    if isinstance(value, str):
        return f": {value}"
    return "" if value is None else f" = {readable(value)}"


def readable(key: Any) -> str:
    """Return a key or value as text: as a tuple, if it is a packed one."""
    if not isinstance(key, bytes):
        return shortened(repr(key))
    try:
        items = layer.unpack(key)
    except Exception:  # bytes that are no tuple fail in many ways
        return shortened(repr(key))
    return f"({', '.join(map(_item, items))})"


def _item(item: Any) -> str:
    return item.hex()[:6] if isinstance(item, bytes) else shortened(repr(item))


def shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
