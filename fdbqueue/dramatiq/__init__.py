"""A broker, a result backend and a backend of rate limits for Dramatiq (docs/dramatiq.md).

Needs the extra `dramatiq`: `pip install fdbqueue[dramatiq]`.
"""

from fdbqueue import extras

with extras.needs("dramatiq", "dramatiq"):
    from fdbqueue.dramatiq.broker import FdbQueueBroker as FdbQueueBroker
    from fdbqueue.dramatiq.consumer import FdbQueueConsumer as FdbQueueConsumer
    from fdbqueue.dramatiq.rate_limits import FdbQueueRateLimits as FdbQueueRateLimits
    from fdbqueue.dramatiq.results import FdbQueueResults as FdbQueueResults
