"""The application of Dramatiq that `benchmarks.frameworks` measures: a process of it is a worker."""

import os
import time
from typing import Any

import dramatiq
import redis
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from fdbqueue.integrations.dramatiq import FdbQueueBroker, FdbQueueResults

WORKERS = (("dramatiq", "benchmarks.dramatiq_tasks", "--processes", "2", "--threads", "1"),)
PATIENCE_S = 120.0
URL = os.environ["BENCHMARK_BROKER"]


def made() -> dramatiq.Broker:
    if URL.startswith("redis"):
        peer = RedisBroker(url=URL)
        # A wait for a result is one blocking read, which the default of the client would cut off.
        client = redis.Redis.from_url(URL, socket_timeout=None)
        peer.add_middleware(Results(backend=RedisBackend(client=client)))
        return peer
    ours = FdbQueueBroker(URL)
    ours.add_middleware(Results(backend=FdbQueueResults(ours)))
    return ours


broker = made()
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def number(given: int) -> float:  # noqa: ARG001  # the payload is all that it is for
    return time.time()


def send(given: int) -> Any:
    return number.send(given)


def ended(sent: Any) -> float:
    at: float = sent.get_result(block=True, timeout=round(PATIENCE_S * 1_000))
    return at
