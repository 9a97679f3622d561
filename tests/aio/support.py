"""Coroutine tests: `@on_loop` runs each on a loop of its own, within a time limit."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from fdbqueue.aio.hub import Hub, hub_of
from fdbqueue.aio.runtime import LoopRuntime
from fdbqueue.core.seam import engine_errors

LIMIT_S = 90


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a coroutine test. Every error that the loop would only log fails it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(_strictly(test(*args, **kwargs)))

    return run


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


async def cancel_soon(call: Coroutine[Any, Any, Any]) -> None:
    """Cancel a call when it has run until its first wait."""
    calling = asyncio.create_task(call)
    await asyncio.sleep(0)
    calling.cancel()
    await asyncio.wait([calling])
