"""Access: the decisions about requests. Which may see a page, which may change a queue; without any I/O.

A cookie is `issued.nonce.mac`. The mac is made with a secret of this process, so a restart signs all out.
"""

import hashlib
import hmac
from dataclasses import dataclass, field

from fdbqueue.core import limits
from fdbqueue.core.open import host_name_in, is_address, is_local_name

COOKIE = "fdbqueue_dashboard"
_SIGNATURE_LENGTH = 32


@dataclass(frozen=True)
class Access:
    secret: bytes = field(repr=False)
    """Random bytes of this process."""
    token: str | None = field(default=None, repr=False)
    """None lets each request in that names this machine, or one of `names`."""
    names: frozenset[str] = frozenset()
    """Further names in Host headers, in lower case."""
    write: bool = False

    def knows_host(self, header: str) -> bool:
        """True if the Host header names this machine; with a token, any address: other sites need a name."""
        name = host_name_in(header)
        return is_local_name(header) or name in self.names or (self.token is not None and is_address(name))

    def is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())

    def is_signed_in(self, cookie: str, authorization: str, now: float) -> bool:
        """True without a token, for its header, and for a cookie that a login has given."""
        if self.token is None:
            return True
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "bearer" and self.is_token(given.strip()):
            return True
        return self._is_valid(cookie, now)

    def new_cookie(self, nonce: bytes, now: float) -> str:
        said = f"{int(now)}.{nonce.hex()}"
        return f"{said}.{self._mac('cookie', said)}"

    def csrf(self, cookie: str) -> str:
        """The text that each form of this browser has to send."""
        return self._mac("form", cookie)

    def signed(self, text: str) -> str:
        """The signature of a text that a redirect carries, so that no other page can invent one."""
        return self._mac("said", text)[:_SIGNATURE_LENGTH]

    def is_signed(self, text: str, signature: str) -> bool:
        return hmac.compare_digest(signature.encode(errors="replace"), self.signed(text).encode())

    def is_csrf(self, given: str, cookie: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.csrf(cookie).encode())

    def _is_valid(self, cookie: str, now: float) -> bool:
        said, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(errors="replace"), self._mac("cookie", said).encode()):
            return False
        return 0 <= now - int(said.partition(".")[0]) < limits.LOGIN_S

    def _mac(self, use: str, said: str) -> str:
        text = f"{use}\0{said}".encode(errors="replace")
        return hmac.new(self.secret, text, hashlib.sha256).hexdigest()


def is_same_origin(origin: str | None, fetch_site: str | None, host: str) -> bool:
    """True unless the browser says that a page of another site sends the form."""
    if fetch_site is not None:  # a proxy may have changed the Host header, but not this one
        return fetch_site in ("same-origin", "none")
    return origin is None or origin.partition("://")[2] == host
