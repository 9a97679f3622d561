"""What each process of Celery's own tests imports first: our broker, and a stand-in for Redis.

Tests that count the runs of their tasks count them in Redis, and are skipped unless the URL of the results
begins with its name. Here it does, and our backend has the results.
"""

import celery.app.backends
import redis
from redis_lists import RedisLists

import fdbqueue.integrations.celery  # noqa: F401  # kombu has no entry points

celery.app.backends.BACKEND_ALIASES["redis-by-fdbqueue"] = "fdbqueue.integrations.celery.backend:Backend"
redis.StrictRedis = RedisLists
