"""Coroutine tests: each runs on a loop of its own, within a time limit.

`@on_loop` gives a test its fixtures only. With `@on_database`, it has a database `db` of each engine; with
`@on_directory` and `@on_memory`, of that engine. A test that asks for `queue` has the task queue "emails".
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fdbqueue import aio
from fdbqueue.aio.hub import Hub, hub_of
from fdbqueue.aio.runtime import LoopRuntime
from fdbqueue.core.seam import engine_errors

LIMIT_S = 90
Test = Callable[..., Coroutine[Any, Any, None]]


def on_loop(test: Test) -> Callable[..., None]:
    """Run a coroutine test. Every error that the loop would only log fails it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(_strictly(test(*args, **kwargs)))

    return run


def _opening(url_of: Callable[..., str], *fixtures: str) -> Callable[[Test], Callable[..., None]]:
    """Return a decorator that opens a database for a test. `url_of` has these fixtures as its arguments."""

    def opened(test: Test) -> Callable[..., None]:
        wanted = inspect.signature(test).parameters

        @functools.wraps(test)
        async def run(**given: Any) -> None:
            rest = {name: value for name, value in given.items() if name in wanted}
            async with aio.open(url_of(*(given[name] for name in fixtures))) as db:
                if "db" in wanted:
                    rest["db"] = db
                if "queue" in wanted:
                    root = {"root": given["root"]} if "root" in given else {}
                    rest["queue"] = await aio.TaskQueue.create(db, "emails", **root)
                await test(**rest)

        names = dict.fromkeys((*fixtures, *wanted)).keys() - {"db", "queue"}
        needed = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(names)]
        run.__signature__ = inspect.Signature(needed)  # type: ignore[attr-defined]  # pytest reads it
        return on_loop(run)

    return opened


on_database = _opening(lambda url, _: url, "url", "root")
on_directory = _opening(lambda path: f"embedded:{path / 'data'}", "tmp_path")
on_memory = _opening(lambda: "memory:")


async def _strictly(test: Coroutine[Any, Any, None]) -> None:
    met: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: met.append(context))
    async with asyncio.timeout(LIMIT_S) as limit:
        await test
    assert not limit.expired()  # the test itself may have caught its end
    assert met == []


def hub() -> Hub:
    """The hub of the running loop."""
    return hub_of(asyncio.get_running_loop())


def runtime() -> LoopRuntime:
    return LoopRuntime(hub())


async def code_of(step: Awaitable[Any]) -> int:
    """The code of the engine's error that `step` raises; 0 if it raises none."""
    try:
        await step
    except engine_errors() as error:
        return int(error.code)
    return 0


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds."""
    while not condition():
        await asyncio.sleep(0.001)


async def cancel_soon(call: Coroutine[Any, Any, Any], turns: int = 1) -> "asyncio.Task[Any]":
    """Cancel a call when it has run until its first wait, or when the loop has turned this often."""
    calling = asyncio.create_task(call)
    for _ in range(turns):
        await asyncio.sleep(0)
    calling.cancel()
    await asyncio.wait([calling])
    return calling
