"""Groups, awaited."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fdbqueue.aio.halves import Putting
from fdbqueue.aio.transaction import Transaction
from fdbqueue.aio.verbs import Face, Maker, awaited, constructor_of
from fdbqueue.core import limits
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.root_keys import DEFAULT_ROOT
from fdbqueue.core.task import Task
from fdbqueue.tasks.groups.group import Group as BlockingGroup


class Group(Face[BlockingGroup]):
    """`fdbqueue.Group`, awaited."""

    __slots__ = ()

    @constructor_of(BlockingGroup)
    def __init__(self) -> None: ...

    create = Maker(BlockingGroup.create)
    open = Maker(BlockingGroup.open)

    @property
    def id(self) -> str:
        return self._blocking.id

    put = awaited(BlockingGroup.put)
    put_many = awaited(BlockingGroup.put_many)
    close = awaited(BlockingGroup.close)
    cancel = awaited(BlockingGroup.cancel)
    progress = awaited(BlockingGroup.progress)
    wait = awaited(BlockingGroup.wait)
    wait_for_progress = awaited(BlockingGroup.wait_for_progress)


class Members:
    """The puts of a group in one transaction; `group` makes it."""

    __slots__ = ("_tr", "group")

    def __init__(self, tr: Transaction, group: Group) -> None:
        self.group = group
        self._tr = tr

    @property
    def id(self) -> str:
        """That of the group."""
        return self.group.id

    async def put(self, queue: Putting[Any], data: Any, /, **options: Any) -> Task:
        """As `fdbqueue.Members.put`."""
        return await self.group.put(self._tr, queue, data, **options)  # type: ignore[arg-type]

    async def put_many(self, queue: Putting[Any], data: Iterable[Any], /, **options: Any) -> list[Task]:
        """As `fdbqueue.Members.put_many`."""
        return await self.group.put_many(self._tr, queue, data, **options)  # type: ignore[arg-type]


@asynccontextmanager
async def group(
    tr: Transaction,
    *,
    then: Any = None,
    wait_for_buried: bool = True,
    retain_s: float = limits.GROUP_RETAIN_S,
    root: Any = DEFAULT_ROOT,
) -> AsyncIterator[Members]:
    """As `fdbqueue.group`: `async with group(tr) as g: await g.put(queue, data)`."""
    if not isinstance(tr, Transaction):
        raise InvalidArgument(name="tr", wanted="a transaction; for a database, use Group.create", got=tr)
    made = await Group.create(tr, then=then, wait_for_buried=wait_for_buried, retain_s=retain_s, root=root)
    yield Members(tr, made)
    await made.close(tr)
