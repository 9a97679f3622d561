"""The OPTIONS of a backend in the setting TASKS."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fdbqueue import limits
from fdbqueue.arguments import checked_count, checked_span, checked_text
from fdbqueue.errors import InvalidArgument, UnknownUrl
from fdbqueue.open import DIRECTORY_SCHEMES, PRIVATE_URL, checked_url, place_of
from fdbqueue.seam import AnyDatabase

NAMESPACE_BYTES_MAX = 100


@dataclass(frozen=True)
class Options:
    url: str | AnyDatabase | None = None
    """As for `fdbqueue.open`, or an open database; None for the database of the environment."""
    namespace: str = "django"
    """The queue `mails` is the task queue `NAMESPACE.mails`."""
    result_ttl: float = 86_400
    """Time for which the result of a task that has succeeded is kept, in seconds."""
    max_attempts: int = 5
    """Number of attempts that a task may fail before it is buried: its worker died, or it raised Retry."""
    session_ttr: float = limits.SESSION_TTR_S
    """Time from the death of a worker until its tasks are ready again, in seconds."""

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> "Options":
        """Raises: InvalidArgument, UnknownUrl."""
        names = [field.name for field in fields(cls)]
        for name in given:
            if name not in names:
                raise InvalidArgument(name="OPTIONS", wanted=f"some of {', '.join(names)}", got=name)
        options = cls(**given)
        checked_text("namespace", options.namespace, NAMESPACE_BYTES_MAX)
        checked_span("result_ttl", options.result_ttl)
        checked_count("max_attempts", options.max_attempts)
        checked_span("session_ttr", options.session_ttr)
        if options.url is None or isinstance(options.url, str):
            require_known(checked_url(options.url, shared_directory=False))
        return options


def require_known(url: str) -> None:
    """Raises UnknownUrl for a URL that names no database. Opens nothing: a system check asks."""
    scheme, colon, rest = url.partition(":")
    if scheme in DIRECTORY_SCHEMES and rest:
        place_of(url)
    elif url != PRIVATE_URL and not (colon and scheme == "fdb"):
        raise UnknownUrl(url=url)
