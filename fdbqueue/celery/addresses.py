"""Addresses: the URL of `fdbqueue.open` that a URL of a broker or a result backend names."""

from urllib.parse import urlsplit

from fdbqueue.errors import UnknownBrokerUrl

SCHEME = "fdbqueue"
_DIRECTORIES = ("embedded", "embedded+shared")
SCHEMES = (SCHEME, *(f"{SCHEME}+{engine}" for engine in (*_DIRECTORIES, "fdb", "memory")))
"""The schemes of broker URLs. kombu cuts the first part off, but not from the URLs of a failover."""

_NO_HOST = ("", "localhost")


def url_of(address: str) -> str:
    """The URL for `fdbqueue.open` that `address` names.

    A directory or a cluster file is an absolute path, as in the URL of a file. Before it may stand
    `localhost`, with a port that is ignored: programs tell alternative brokers apart by them.
    Raises: UnknownBrokerUrl.
    """
    engine, separator, place = address.removeprefix(f"{SCHEME}+").partition("://")
    host, slash, path = place.partition("/")
    if not separator or not _is_here(host):
        raise UnknownBrokerUrl(url=address)
    if engine == "memory" and not path:
        return "memory:"
    if engine == "fdb":
        return f"fdb:/{path}" if path else "fdb:"
    if engine not in _DIRECTORIES or not slash or not path:
        raise UnknownBrokerUrl(url=address)
    return f"{engine}:/{path}"


def _is_here(host: str) -> bool:
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "") in _NO_HOST and (parts.port or 0) >= 0 and "@" not in host
    except ValueError:  # the port is no number
        return False
