"""A mail for each new user, with Dramatiq: start workers, then `python -m examples.dramatiq_app NAME`."""

import sys

import dramatiq
from dramatiq.results import Results

import fdbqueue
from fdbqueue.integrations.dramatiq import FdbQueueBroker, FdbQueueResults

broker = FdbQueueBroker()  # the database of $FDBQUEUE_URL, or ./fdbqueue-data
broker.add_middleware(Results(backend=FdbQueueResults(broker)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True)
def welcome(name: str) -> str:
    return f"welcome, {name}"


@fdbqueue.transactional
def sign_up(tr: fdbqueue.Transaction, name: str) -> dramatiq.Message[str]:
    tr[b"users/" + name.encode()] = b"1"
    with broker.within(tr):
        return welcome.send(name)


if __name__ == "__main__":
    print(sign_up(broker.database, sys.argv[1]).get_result(block=True, timeout=60_000))
