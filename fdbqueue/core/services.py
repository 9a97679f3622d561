"""Services: objects that a process has once for each database, and for each queue that it uses there.

A process may use any number of queues. The service of a queue lives as long as a call uses it: each call
holds it on its stack, also while it waits, or while another call fetches its answer. Those used last are
kept besides, in two generations: when the younger one is full it becomes the older one, and the older one is
forgotten. So a use costs one look into a dict, and no list of uses has to be kept.
"""

from collections.abc import Hashable
from typing import Protocol
from weakref import WeakValueDictionary

from fdbqueue.core import limits


class Service(Protocol):
    def close(self) -> None:
        """The database closes, and has ended the waits."""
        return

    def is_needed(self) -> bool:
        """True if the service must be kept without recent use."""
        return False


class Services:
    """Calls must come one at a time, except reads of `recent`."""

    def __init__(self) -> None:
        self.recent: dict[Hashable, Service] = {}
        """The younger generation, and those that are needed: always the same dict."""
        self._older: dict[Hashable, Service] = {}
        self._living: WeakValueDictionary[Hashable, Service] = WeakValueDictionary()
        self._room = limits.SERVICES_REMEMBERED

    def find(self, key: Hashable) -> Service | None:
        found = self.recent.get(key)
        if found is None:
            found = self._living.get(key)  # those of the older generation are among them
            if found is not None:
                self._remember(key, found)
        return found

    def add(self, key: Hashable, service: Service) -> None:
        self._living[key] = service
        self._remember(key, service)

    def all(self) -> list[Service]:
        return list(self._living.values())

    def _remember(self, key: Hashable, service: Service) -> None:
        if len(self.recent) >= self._room:
            self._age()
        self.recent[key] = service

    def _age(self) -> None:
        needed = {
            key: service
            for generation in (self._older, self.recent)
            for key, service in generation.items()
            if service.is_needed()
        }
        self._older = {key: service for key, service in self.recent.items() if key not in needed}
        self.recent.update(needed)
        for key in self._older:
            del self.recent[key]
        self._room = len(needed) + limits.SERVICES_REMEMBERED
