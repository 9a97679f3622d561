"""URLs of brokers and result backends, and the databases that they name."""

import pytest

from fdbqueue.core.errors import UnknownBrokerUrl
from fdbqueue.integrations.celery.databases import url_of


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("fdbqueue+embedded:///var/lib/queue", "embedded:/var/lib/queue"),
        ("fdbqueue+embedded:///queue?durability=soon", "embedded:/queue?durability=soon"),
        ("fdbqueue+embedded+shared:///queue", "embedded+shared:/queue"),
        ("fdbqueue+embedded://localhost/queue", "embedded:/queue"),
        ("fdbqueue+embedded://localhost:4690/queue", "embedded:/queue"),
        ("fdbqueue+fdb:///etc/foundationdb/fdb.cluster", "fdb:/etc/foundationdb/fdb.cluster"),
        ("fdbqueue+fdb://", "fdb:"),
        ("fdbqueue+memory://", "memory:"),
        ("embedded:///queue", "embedded:/queue"),  # kombu has cut the first part off
    ],
)
def test_an_address_names_a_database(address: str, url: str) -> None:
    assert url_of(address) == url


@pytest.mark.parametrize(
    "address",
    [
        "",
        "fdbqueue://",
        "fdbqueue+embedded://",
        "fdbqueue+embedded:///",
        "fdbqueue+embedded:relative",
        "fdbqueue+embedded://elsewhere/queue",
        "fdbqueue+embedded://user@localhost/queue",
        "fdbqueue+embedded://localhost:port/queue",
        "fdbqueue+memory:///queue",
        "fdbqueue+redis:///queue",
    ],
)
def test_an_address_that_names_none_is_refused(address: str) -> None:
    with pytest.raises(UnknownBrokerUrl, match=r"use \"fdbqueue\+embedded:///PATH\""):
        url_of(address)
