"""Celery and kombu on fdbqueue: a transport, a result backend, and puts in a transaction (docs/celery.md).

`import fdbqueue.celery` makes `fdbqueue+embedded:///PATH` and `fdbqueue+fdb:///CLUSTER_FILE` URLs of brokers.
As a result backend, they need no import. Needs the extra `celery`: `pip install fdbqueue[celery]`.
"""

from fdbqueue import extras

with extras.needs("celery", "celery", "kombu"):
    from fdbqueue.celery.databases import close as close
    from fdbqueue.celery.databases import database as database
    from fdbqueue.celery.pools import watch_workers
    from fdbqueue.celery.puts import transaction as transaction
    from fdbqueue.celery.transport import Transport as Transport
    from fdbqueue.celery.transport import register

register()
watch_workers()
