"""Place: the database and the root that --url and --root name, and the queues there."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from fdb.subspace_impl import Subspace

from fdbqueue import queues as late_queues
from fdbqueue import tasks as late
from fdbqueue.core.database import Database, require_answer
from fdbqueue.core.errors import (
    ClusterMismatch,
    DatabaseNotFound,
    FdbQueueError,
    LimitNotFound,
    QueueNotFound,
    ScheduleNotFound,
)
from fdbqueue.core.open import DIRECTORY_SCHEMES, PRIVATE_URL, shared_url, url_from_environment
from fdbqueue.core.open import open as open_database
from fdbqueue.core.page import every_row
from fdbqueue.core.registry import FAIR_ITEMS, PIECES, PLAIN, SIMPLE, Definition, Registry
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.seam import engine_errors
from fdbqueue.core.visible import text_of
from fdbqueue.operate.cli.exits import NO_DIRECTORY, CommandError, is_removed
from fdbqueue.queues import elements, recipe
from fdbqueue.tasks.options import is_kind

if TYPE_CHECKING:
    from fdbqueue.queues.elements.queue import SimpleElementQueue
    from fdbqueue.queues.fair import FairQueue
    from fdbqueue.queues.recipe.queue import Queue
    from fdbqueue.tasks.queue import TaskQueue

ELEMENT_KINDS = (PIECES, SIMPLE)
_TIMED_OUT = 1031
CONNECT_TIMEOUT_S = 10.0
COMPLETION_TIMEOUT_S = 1.0
DIRECTORY_TIMEOUT_S = 15.0
NAMES_COMPARED_MAX = 5_000
_LISTED_MAX = 3
_LIKENESS = 0.6
_COMPLETED = re.compile(r"[\w@%+./][\w@%+=:,./-]*")
CREATE_HERE = "--create makes one"
CREATE_DATABASE = "`fdbqueue create QUEUE` makes one"
CREATE_TASKS = "`fdbqueue create {name}` makes one"
SET_LIMIT = "`fdbqueue limit set {name}` makes one"
CREATE_SCHEDULE = "`fdbqueue schedule create {name} QUEUE` makes one"
CREATE_PLAIN = "`fdbqueue create {name} --kind queue` makes one"


class NoDatabase(CommandError):
    """The place has no database."""


@dataclass(frozen=True)
class Place:
    """A database, and a root in it."""

    url: str
    root: Subspace

    @property
    def cluster_file(self) -> str:
        """Empty for the default one, and for another database."""
        scheme, _, rest = self.url.partition(":")
        return rest.partition("?")[0] if scheme == "fdb" else ""

    @classmethod
    def of(cls, url: str | None, root: str | None, shared: bool = False) -> "Place":
        """Return the place of --url, --root and --shared-directory; None is the default.

        Raises InvalidArgument if `shared` is given with a URL that is not a directory.
        """
        where = url_from_environment() if url is None else url
        return cls(
            shared_url(where) if shared else where,
            DEFAULT_ROOT if root is None else Subspace(tuple(root.split("/"))),
        )

    @contextmanager
    def database(
        self,
        *,
        create: bool = False,
        cure: str = CREATE_DATABASE,
        timeout_s: float | None = CONNECT_TIMEOUT_S,
    ) -> Iterator[Database]:
        """Open the database. With `create`, a directory gets one if there is none.

        A cluster has to answer within `timeout_s`; with None, it may answer later. In a directory, each
        transaction has to commit within DIRECTORY_TIMEOUT_S: a process may be stopped in a commit, for which
        all others wait. Raises CommandError, with the `cure`, if there is none.
        """
        if self.url == PRIVATE_URL:
            raise CommandError(f"{self.url} ends with the command: use embedded:PATH, or fdb: for a cluster")
        scheme, _, path = self.url.partition(":")
        if scheme in DIRECTORY_SCHEMES and not os.path.isabs(os.path.expanduser(path)) and is_removed(None):
            raise CommandError(NO_DIRECTORY)
        try:
            opened = open_database(self.url, create=create)
        except DatabaseNotFound as failure:
            if self._is_cluster:
                raise CommandError(str(failure)) from None
            raise NoDatabase(f"there is no database at {self.url}; {cure}") from None
        with opened as database:
            if not self._is_cluster:
                database.options.set_transaction_timeout(round(DIRECTORY_TIMEOUT_S * 1000))
            elif timeout_s is not None:
                try:
                    require_answer(database, self.url, timeout_s)
                except ClusterMismatch:
                    raise
                except DatabaseNotFound as failure:
                    raise self._no_answer(timeout_s, failure.__cause__) from None
            with self._naming(database):
                yield database

    @contextmanager
    def made(
        self, trial: Callable[[Database], object], name: str | None = None, *, create: bool, cure: str
    ) -> Iterator[Database]:
        """Open the database. With `create`, a directory gets one if there is none.

        A command that makes a database, or its queue `name`, calls `trial` with a private one first, and ends
        with its errors. So a command that is refused makes nothing. Raises: as `database`.
        """
        with ExitStack() as stack:
            try:
                database: Database | None = stack.enter_context(self.database(cure=cure))
            except NoDatabase:
                if not create:
                    raise
                database = None
            lacks = database is None or (name is not None and self.registry.look(database, name) is None)
            if create and lacks:
                with open_database(PRIVATE_URL) as private, self._naming(private):
                    trial(private)
            yield database or stack.enter_context(self.database(create=True))

    @contextmanager
    def _naming(self, database: Database) -> Iterator[None]:
        """Tell a queue, a limit or a schedule that is missing with the names that are like it."""
        try:
            yield
        except QueueNotFound as error:
            raise self.missing(database, error.name, CREATE_TASKS) from None
        except LimitNotFound as error:
            names = (found.name for found in late.limits.limit.Limit.list(database, root=self.root))
            raise self._unknown("limit", error.name, names, SET_LIMIT) from None
        except ScheduleNotFound as error:
            listing = partial(late.schedules.list_schedules, database, root=self.root)
            names = (found.name for found in every_row(listing))
            raise self._unknown("schedule", error.name, names, CREATE_SCHEDULE) from None

    @contextmanager
    def queue(self, name: str) -> "Iterator[tuple[Database, Queue]]":
        """Open the plain queue of that name. Raises CommandError if there is none."""
        with self.database() as database:
            try:
                queue = recipe.queue.Queue.named(database, name, create=False, root=self.root)
            except QueueNotFound:
                raise self.missing(database, name, CREATE_PLAIN) from None
            yield database, queue

    @contextmanager
    def items(self, name: str) -> "Iterator[tuple[Database, Queue | FairQueue]]":
        """Open the queue of items of that name, plain or fair. Raises CommandError if there is none."""
        with self.database() as database:
            found = self.definition(database, name, CREATE_PLAIN)
            if found.kind not in (PLAIN, FAIR_ITEMS):
                raise CommandError(of_another_kind(name, found.kind))
            yield database, self.items_in(database, found)

    def items_in(self, database: Database, found: Definition) -> "Queue | FairQueue":
        if found.kind == FAIR_ITEMS:
            return late_queues.fair.FairQueue.named(database, found.name, create=False, root=self.root)
        return recipe.queue.Queue.named(database, found.name, create=False, root=self.root)

    def lined_in(self, database: Database, found: Definition) -> "Queue | FairQueue | TaskQueue":
        """Return the queue, of a kind with a line. Raises CommandError."""
        of_items = found.kind in (PLAIN, FAIR_ITEMS)
        return self.items_in(database, found) if of_items else self.tasks_in(database, found.name)

    @contextmanager
    def tasks(self, name: str) -> "Iterator[tuple[Database, TaskQueue]]":
        """Open the task queue of that name. Raises CommandError if there is none."""
        with self.database() as database:
            yield database, self.tasks_in(database, name)

    @contextmanager
    def partitioned(self, name: str) -> "Iterator[tuple[Database, Queue | TaskQueue]]":
        """Open the queue of that name, of a kind that may have partitions. Raises CommandError."""
        with self.database() as database:
            yield database, self.partitioned_in(database, self.definition(database, name))

    def partitioned_in(self, database: Database, found: Definition) -> "Queue | TaskQueue":
        """Return the queue, of a kind that may have partitions. Raises CommandError."""
        if found.kind == PLAIN:
            return recipe.queue.Queue.named(database, found.name, create=False, root=self.root)
        return self.tasks_in(database, found.name)

    def tasks_in(self, database: Database, name: str) -> "TaskQueue":
        """Return the task queue of that name. Raises CommandError."""
        found = self.definition(database, name)
        if not is_kind(found.kind):
            raise CommandError(of_another_kind(name, found.kind))
        return late.queue.TaskQueue(database, self.registry, found)

    def elements_in(self, found: Definition) -> "SimpleElementQueue":
        """Return an element queue of any kind, as far as both kinds are alike."""
        under, guard = self.registry.contents(found), self.registry.guard(found)
        return elements.queue.SimpleElementQueue(under, root=self.root, guard=guard)

    def definition(self, database: Database, name: str, cure: str = CREATE_TASKS) -> Definition:
        """Return the definition of `name`. Raises CommandError with the `cure` in its message."""
        try:
            return self.registry.find(database, name)
        except QueueNotFound:
            raise self.missing(database, name, cure) from None

    def kind_of(self, database: Database, name: str, cure: str, otherwise: str | None) -> str:
        """Return the kind of the queue, else `otherwise`. Raises CommandError if both are missing."""
        try:
            return self.registry.find(database, name).kind
        except QueueNotFound:
            if otherwise is None:
                raise self.missing(database, name, cure) from None
            return otherwise

    def definitions(self, database: Database) -> Iterator[Definition]:
        """Read all definitions under the root, by name, in bounded transactions."""
        after = ""
        while found := self.registry.names(database, after):
            yield from found
            after = found[-1].name

    @property
    def _is_cluster(self) -> bool:
        return self.url.startswith("fdb:")

    @property
    def registry(self) -> Registry:
        return Registry(self.root)

    def missing(self, database: Database, name: str, cure: str) -> CommandError:
        """Return an error that lists the names nearest to `name`, and the `cure`."""
        return self._unknown("queue", name, (found.name for found in self.definitions(database)), cure)

    def _unknown(self, kind: str, name: str, names: Iterable[str], cure: str) -> CommandError:
        meant = did_you_mean(name, islice(names, NAMES_COMPARED_MAX))
        told = f"there is no {kind} named {name!r} in {self.url}{meant}"
        return CommandError(f"{told}; {cure.format(name=name)}")

    @contextmanager
    def answering(self, database: Database, timeout_s: float) -> Iterator[None]:
        """Raise CommandError if a cluster leaves a transaction of the block unanswered for this time."""
        if self._is_cluster:
            database.options.set_transaction_timeout(round(timeout_s * 1000))
        try:
            yield
        except engine_errors() as failure:
            if failure.code != _TIMED_OUT:
                raise
            raise self._no_answer(timeout_s, failure) from None
        finally:
            if self._is_cluster:  # the binding has one database for all that open the cluster in this process
                database.options.set_transaction_timeout(0)

    def _no_answer(self, timeout_s: float, cause: BaseException | None) -> CommandError:
        return CommandError(f"no answer from {self.url} in {timeout_s:g} s ({text_of(cause)})")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return the words of a message that tell the names most like `name`; empty if none is."""
    like = ", ".join(map(repr, nearest(name, names)))
    return f" (did you mean {like}?)" if like else ""


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """Return the `names` most like `name`, ignoring case, the nearest first; then names that contain it."""
    by_lower: dict[str, list[str]] = {}
    for known in names:
        by_lower.setdefault(known.lower(), []).append(known)
    wanted = name.lower()
    close = get_close_matches(wanted, by_lower, _LISTED_MAX, _LIKENESS)
    parts = [lower for lower in by_lower if lower not in close and (wanted in lower or lower in wanted)]
    return [known for lower in (*close, *parts) for known in by_lower[lower]][:_LISTED_MAX]


def of_another_kind(name: str, kind: str) -> str:
    """The message of a command that is not for queues of that kind. It tells the commands that are."""
    if kind == FAIR_ITEMS:
        return f"{name!r} is a fair queue, of items without leases: put, get, peek, size, waiting"
    if kind == PLAIN:
        return f"{name!r} is a plain queue, of items without leases: put, get, peek, size, clear"
    if kind in ELEMENT_KINDS:
        return f"{name!r} is an element queue: `fdbqueue elements --help` lists its commands"
    if is_kind(kind):
        return f"{name!r} is a task queue, of kind {kind}: put, work, tasks, stats"
    return f"{name!r} is of kind {kind}, which this release does not know"


def names_for_completion(place: Place, prefix: str) -> list[str]:
    """Return names of queues that begin with `prefix`; none if the database does not answer in time.

    Names with special characters of a shell are left out, as bash inserts names unquoted.
    """
    try:
        with place.database(timeout_s=COMPLETION_TIMEOUT_S) as database:
            names = (found.name for found in place.definitions(database))
            return [name for name in names if name.startswith(prefix) and _COMPLETED.fullmatch(name)]
    except (CommandError, FdbQueueError, OSError):
        return []
    except engine_errors():
        return []
