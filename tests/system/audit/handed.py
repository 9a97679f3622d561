"""Handed: the locks that a process has handed over to another one, which acts under their tokens."""

from collections import defaultdict


class HandedLocks:
    def __init__(self) -> None:
        self._machines: defaultdict[bytes, set[str]] = defaultdict(set)

    def add(self, token: bytes, machine: str) -> None:
        """`machine` gets the lock with this token."""
        self._machines[token].add(machine)

    def has(self, token: bytes, machine: str) -> bool:
        return machine in self._machines.get(token, ())
