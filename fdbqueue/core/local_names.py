"""Names of this machine, for servers that answer to no other name.

A page of another site could give its own name the address of this machine, and read a server of it. Its
requests carry that name in the Host header.
"""

from ipaddress import ip_address
from urllib.parse import urlsplit


def host_name_in(header: str) -> str:
    """The name in a Host header, in lower case and without its port; empty if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_local_name(header: str) -> bool:
    """True if the Host header names this machine: localhost, or a loopback address."""
    name = host_name_in(header)
    return name == "localhost" or is_loopback(name)


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
