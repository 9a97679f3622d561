"""The application of Taskiq that `benchmarks.frameworks` measures: a process of it is a worker."""

import asyncio
import os
import time
from functools import cache
from typing import Any

from taskiq import AsyncBroker
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueResults

WORKERS = (("taskiq", "worker", "benchmarks.taskiq_tasks:broker", "--workers", "2"),)
PATIENCE_S = 120.0
URL = os.environ["BENCHMARK_BROKER"]
_loop = asyncio.new_event_loop()


def made() -> AsyncBroker:
    if URL.startswith("redis"):
        return RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend[Any](URL))
    ours = FdbQueueBroker(URL)
    return ours.with_result_backend(FdbQueueResults[Any](ours))


broker = made()


@broker.task("number")
async def number(given: int) -> float:  # noqa: ARG001  # the payload is all that it is for
    return time.time()


@cache
def _start() -> None:
    _loop.run_until_complete(broker.startup())


def send(given: int) -> Any:
    _start()
    return _loop.run_until_complete(number.kiq(given))


def ended(sent: Any) -> float:
    result = _loop.run_until_complete(sent.wait_result(check_interval=0.01, timeout=PATIENCE_S))
    at: float = result.return_value
    return at
