"""Pace: the priority of transactions in a cluster, and the options that a user gives a database.

A cluster under load holds back transactions of batch priority first, up to all of them. It does so where a
transaction gets its read version, which it may refuse (1051) or not answer. So work that no caller waits for
asks for its read version before anything else, and waits for it with patience: after `BATCH_PATIENCE_S` or
`BACKGROUND_PATIENCE_S` the same attempt begins again at default priority. Its body has not run by then, so
nothing happens twice. Such work goes on while batch priority starves, by one transaction for each wait.

Priority and tags end with each attempt: neither `on_error` nor `reset` keeps them. So each attempt sets them.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlencode

from fdbqueue.core import limits
from fdbqueue.core.arguments import checked_timeout, checked_whole
from fdbqueue.core.database import Body, Database, limit_attempts
from fdbqueue.core.database import Manner as AnyManner
from fdbqueue.core.errors import InvalidArgument, UnknownUrl
from fdbqueue.core.seam import Transaction, engine_errors

T = TypeVar("T")
D = TypeVar("D", bound=Database)

DEFAULT, BATCH = "default", "batch"
_BATCH_THROTTLED = 1051


class Wishes(NamedTuple):
    """Options of the transactions of one database, as its user gives them."""

    tags: tuple[str, ...] = ()
    priority: str | None = None
    """None: background work has batch priority, and calls have the default one."""
    timeout_s: float | None = None
    retry_limit: int | None = None


def wishes_of(tags: Any, priority: Any, timeout_s: Any, retry_limit: Any) -> Wishes | None:
    """The checked options; None if there are none. Raises: InvalidArgument."""
    if timeout_s is not None:
        timeout_s = checked_timeout(timeout_s, "transaction_timeout_s")
        if not timeout_s:
            raise InvalidArgument(name="transaction_timeout_s", wanted="None, or above 0", got=timeout_s)
    if retry_limit is not None:
        retry_limit = checked_whole("transaction_retry_limit", retry_limit, 0)
    if priority not in (None, DEFAULT, BATCH):
        raise InvalidArgument(name="priority", wanted="None, 'default' or 'batch'", got=priority)
    found = Wishes(_checked_tags(tags), priority, timeout_s, retry_limit)
    return None if found == Wishes() else found


def wishes_in(url: str, query: str) -> Wishes | None:
    """The options in the query of a URL: tag=NAME&tag=NAME&priority=batch&timeout=S&retry_limit=N.

    Raises: UnknownUrl for another query, InvalidArgument for a value.
    """
    try:
        given = parse_qs(query, keep_blank_values=True, strict_parsing=bool(query))
        tags = given.pop("tag", [])
        single = {name: value for name, (value,) in given.items()}
        timeout, retries = single.pop("timeout", None), single.pop("retry_limit", None)
        timeout_s, retry_limit = timeout and float(timeout), retries and int(retries)
        priority = single.pop("priority", None)
    except ValueError:
        raise UnknownUrl(url=url) from None
    if single or "" in (timeout, retries):
        raise UnknownUrl(url=url)
    return wishes_of(tags, priority, timeout_s, retry_limit)


def query_of(wishes: Wishes) -> str:
    """The query by which another process opens a database with these options."""
    given = [("tag", tag) for tag in wishes.tags]
    single = {"priority": wishes.priority, "timeout": wishes.timeout_s, "retry_limit": wishes.retry_limit}
    return urlencode([*given, *((name, value) for name, value in single.items() if value is not None)])


def _checked_tags(tags: Any) -> tuple[str, ...]:
    most, length = limits.TAGS_MAX, limits.TAG_BYTES_MAX
    wanted = f"at most {most} texts of 1 to {length} bytes"
    if not isinstance(tags, Sequence) or isinstance(tags, str | bytes) or len(tags) > most:
        raise InvalidArgument(name="tags", wanted=wanted, got=tags)
    for tag in tags:
        if not isinstance(tag, str) or not tag.isprintable() or not 1 <= len(tag.encode()) <= length:
            raise InvalidArgument(name="tags", wanted=wanted, got=tags)
    return tuple(tags)


class _Kind(NamedTuple):
    """Of one kind of work."""

    patience_s: float
    """The longest wait for a read version at batch priority."""
    is_limited: bool
    """True if the options of the user hold at default priority, too, and its limits at all."""


_KINDS = {
    "upkeep": _Kind(limits.BATCH_PATIENCE_S, False),
    "look": _Kind(limits.BATCH_PATIENCE_S, True),
    "background": _Kind(limits.BACKGROUND_PATIENCE_S, True),
}


class Manner(NamedTuple):
    """How the transactions of a database are made."""

    wishes: Wishes
    is_batch: bool
    patience_s: float | None
    """None: for ever."""
    is_limited: bool

    def followed_by(self, other: AnyManner | None) -> AnyManner | None:
        """The manner of the same database for work of another kind."""
        return other

    def once(self, body: Body[T], wrote: Callable[[T], bool] | None) -> Body[T]:  # noqa: ARG002
        return body

    def attempts(
        self, database: Database, retry_limit: int | None = None, timeout_s: float | None = None
    ) -> "Attempts":
        """The attempts of one call, with the limits of that call."""
        return Attempts(database, self, retry_limit, timeout_s)


def manner_of(wishes: Wishes | None, name: str) -> Manner | None:
    """The manner of one kind of work, as Database.at names it; None for plain transactions.

    Of liveness are heartbeats, renewals of leases and ends of dead sessions. They have no options at all: a
    throttled tag would end leases, or keep tasks of the dead from the living.
    """
    if name == "liveness" or (name == "call" and wishes is None):
        return None
    wishes = wishes or Wishes()
    if name == "call":
        return Manner(wishes, wishes.priority == BATCH, None, True)
    kind = _KINDS[name]
    patience_s = None if kind.is_limited and wishes.priority == BATCH else kind.patience_s
    is_batch = wishes.priority != DEFAULT
    if not is_batch and not kind.is_limited:
        return None
    return Manner(wishes, is_batch, patience_s, kind.is_limited)


def paced(database: D, name: str) -> D:
    twin = database.lent()
    found = manner_of(database.wishes, name)
    twin.manner = found if database.manner is None else database.manner.followed_by(found)
    return twin


def bounded(wishes: Wishes | None, timeout_s: float) -> Wishes:
    """These options, with a timeout of `timeout_s` at most."""
    found = wishes or Wishes()
    return found._replace(timeout_s=_smaller(found.timeout_s, timeout_s))


def with_wishes(database: Database, wishes: Wishes | None) -> None:
    """Let the transactions of a fresh database have these options."""
    database.wishes = wishes
    database.manner = manner_of(wishes, "call")


class Attempts:
    """The attempts of one call: `begin` comes before each."""

    def __init__(
        self, database: Database, manner: Manner, retry_limit: int | None, timeout_s: float | None
    ) -> None:
        self._database = database
        self._manner = manner
        self._is_batch = manner.is_batch
        self._retry_limit, self._timeout_s = retry_limit, timeout_s
        if manner.is_limited:
            self._retry_limit = _smaller(retry_limit, manner.wishes.retry_limit)
            self._timeout_s = _smaller(timeout_s, manner.wishes.timeout_s)
        self._began_at = database.runtime.monotonic()
        self._patience_s = manner.patience_s
        if self._patience_s is not None and self._timeout_s is not None:
            self._patience_s = min(self._patience_s, self._timeout_s / 2)  # the rest is for the body
        self._until: float | None = None
        self._retries = -1

    def begin(self, tr: Transaction) -> None:
        """Set the options of an attempt. At batch priority, wait for its read version, but not for ever.

        Raises: FDBError, as a read does; the retry loop meets it like that of the body.
        """
        self._retries += 1
        if not self._retries:
            limit_attempts(tr.options, self._retry_limit, self._timeout_s)
        if self._is_batch and not self._is_let_in(tr):
            self._is_batch = False
            self._database.counters.note_fallback()
            tr.reset()  # also forgets the request for a read version, and what the limits have counted
            self._limit_the_rest(tr)
        if not self._is_batch and self._manner.is_limited:
            self._tag(tr)

    def _limit_the_rest(self, tr: Transaction) -> None:
        retries, left_s = self._retry_limit, self._timeout_s
        if retries is not None:
            retries = max(0, retries - self._retries)
        if left_s is not None:
            left_s = max(0.0, left_s - (self._database.runtime.monotonic() - self._began_at))
        limit_attempts(tr.options, retries, left_s)

    def _is_let_in(self, tr: Transaction) -> bool:
        """Ask for a read version at batch priority. False if none comes in time."""
        self._tag(tr)
        tr.options.set_priority_batch()
        self._database.counters.batch += 1
        if self._patience_s is None:
            return True
        runtime = self._database.runtime
        if self._until is None:
            self._until = runtime.monotonic() + self._patience_s
        left_s = self._until - runtime.monotonic()
        if left_s <= 0:
            return False
        version = tr.get_read_version()
        if not runtime.wait_any([version], left_s):
            return False
        try:
            version.wait()
        except engine_errors() as error:
            if error.code == _BATCH_THROTTLED and self._retry_limit is not None:
                self._retry_limit += 1  # the body has not run
                limit_attempts(tr.options, self._retry_limit, None)
            raise
        self._until = None  # a conflict may follow, and is no lack of a read version
        return True

    def _tag(self, tr: Transaction) -> None:
        for tag in self._manner.wishes.tags:
            tr.options.set_auto_throttle_tag(tag)


N = TypeVar("N", int, float)


def _smaller(one: N | None, other: N | None) -> N | None:
    return min(one, other) if one is not None and other is not None else other if one is None else one
