"""The stores of this process: one per directory, since LMDB must not be opened twice in a process."""

import importlib
import os
import shutil
import tempfile
from typing import Any

from fdbqueue.embedded.directory import Directory
from fdbqueue.embedded.store import TEMPORARY_PREFIX, Store
from fdbqueue.runtime import RealRuntime, Runtime

_stores: dict[str, Store] = {}
_privates: set[Store] = set()


def acquire(path: str, runtime: Runtime, shared: bool = False) -> Store:
    """Return the store of a directory: the open one of this process, or a new one.

    Raises: UnsafePath, StorageInUse, StorageFormat, StorageFull.
    """
    directory = Directory.open(path, shared=shared)
    with _registry_lock:
        store = _stores.get(directory.path)
        if store is None:
            store = _stores[directory.path] = Store(directory, runtime, private=False)
        else:
            directory.close()
        store.users += 1
        return store


def acquire_private(runtime: Runtime) -> Store:
    """Return a new store in memory, which ends with its last database."""
    store = private_store(runtime)
    with _registry_lock:
        _privates.add(store)
        store.users = 1
        return store


def private_store(runtime: Runtime, parent: str | None = None) -> Store:
    """Return a store in a temporary directory that is removed at once: only its open files are left."""
    path = tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=parent)
    try:
        return Store(Directory.open(path), runtime, private=True)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def release(store: Store) -> None:
    with _registry_lock:
        store.users -= 1
        if store.users == 0:
            _stores.pop(store.path, None)
            _privates.discard(store)
            store.close()


def _know_own_handles_from_inherited_ones() -> None:
    """Let py-lmdb open the parent's files again in this child.

    It refuses a file that it remembers as open, and a fork copies its memory. It has no call to forget a
    file, so this replaces a function of it. That is why the major version of py-lmdb is pinned.
    """
    envid: Any = importlib.import_module("lmdb._envid")
    of_file, process_id = envid.env_keys, os.getpid()
    envid.env_keys = lambda path, subdir: tuple((process_id, key) for key in of_file(path, subdir))


def _after_fork_in_child() -> None:
    global _registry_lock
    _registry_lock = RealRuntime.lock()
    _know_own_handles_from_inherited_ones()
    for store in (*_stores.values(), *_privates):
        store.reopen_after_fork()


_registry_lock = RealRuntime.lock()
os.register_at_fork(after_in_child=_after_fork_in_child)
