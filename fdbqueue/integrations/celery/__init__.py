"""Celery and kombu on fdbqueue: a transport, a result backend, and puts in a transaction (docs/celery.md).

`import fdbqueue.integrations.celery` makes `fdbqueue+embedded:///PATH` and `fdbqueue+fdb:///CLUSTER_FILE`
URLs of brokers. As a result backend, they need no import. Needs the extra `celery`:
`pip install fdbqueue[celery]`.
"""

from fdbqueue.core import lazy

with lazy.needs("celery", "celery", "kombu"):
    from fdbqueue.integrations.celery.databases import close as close
    from fdbqueue.integrations.celery.databases import database as database
    from fdbqueue.integrations.celery.databases import transaction as transaction
    from fdbqueue.integrations.celery.databases import watch_workers
    from fdbqueue.integrations.celery.transport import Transport as Transport
    from fdbqueue.integrations.celery.transport import register

register()
watch_workers()
