"""Handlers by name, "module:function": another process cannot be given a function."""

import importlib
from collections.abc import Callable
from typing import Any

from fdbqueue.deferred import deferred_body, is_of_generator, require_finished
from fdbqueue.errors import DeferredBody, HandlerNotFound


def named(target: str) -> Any:
    """Import the object that `target` names. Raises HandlerNotFound, also for an error during the import."""
    module_name, colon, path = target.partition(":")
    if not (module_name and colon and path):
        raise HandlerNotFound(target=target, reason='it must be written as "module:function"')
    try:
        found: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        reason = f"importing {module_name} fails ({type(error).__name__}: {error})"
        raise HandlerNotFound(target=target, reason=reason) from error
    for name in path.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise HandlerNotFound(target=target, reason=f"{module_name} has no {path}") from None
    return found


def handler_named(target: str) -> Callable[..., Any]:
    """Raises HandlerNotFound."""
    found = named(target)
    if not callable(found):
        raise HandlerNotFound(target=target, reason="it cannot be called")
    handler: Callable[..., Any] = found
    return handler


def returning(target: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler of that name. Raises DeferredBody for a generator function."""
    kind = deferred_body(handler)
    if kind is not None and is_of_generator(kind):
        message = f"The handler {target} is {kind}: a handler returns, and does not yield."
        raise DeferredBody(message, name="handler", kind=kind, got=handler)
    return handler


def made(target: str, factory: Callable[[Any], Any], argument: Any) -> Callable[..., Any]:
    """Return the handler that `factory` makes. Raises HandlerNotFound if it makes none, or raises."""
    try:
        handler = require_finished("it", factory(argument))
    except (Exception, SystemExit) as error:
        reason = f"making the handler fails ({type(error).__name__}: {error})"
        raise HandlerNotFound(target=target, reason=reason) from error
    if not callable(handler):
        raise HandlerNotFound(target=target, reason="its result cannot be called")
    made_handler: Callable[..., Any] = handler
    return made_handler
