"""A broker, a result backend and a backend of rate limits for Dramatiq (docs/dramatiq.md).

Needs the extra `dramatiq`: `pip install fdbqueue[dramatiq]`.
"""

from fdbqueue.core import lazy

with lazy.needs("dramatiq", "dramatiq"):
    from fdbqueue.integrations.dramatiq.broker import FdbQueueBroker as FdbQueueBroker
    from fdbqueue.integrations.dramatiq.broker import FdbQueueConsumer as FdbQueueConsumer
    from fdbqueue.integrations.dramatiq.broker import FdbQueueRateLimits as FdbQueueRateLimits
    from fdbqueue.integrations.dramatiq.broker import FdbQueueResults as FdbQueueResults
