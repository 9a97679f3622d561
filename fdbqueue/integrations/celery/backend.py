"""Celery's result backend: results with an end, waits by watches, and chords by counters of our own.

Each part of a header of a chord counts once, however often its task is delivered. A part that returns does
not conflict with the others: it adds to the counter, and looks at it afterwards. The last one finds the chord
complete, and claims it in the transaction that puts the task of its body.
"""

from collections.abc import Iterator
from typing import Any

from celery import states
from celery.app.task import Context
from celery.backends.base import KeyValueStoreBackend
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, TimeoutError
from celery.result import GroupResult, allow_join_result
from kombu.log import get_logger
from kombu.utils.encoding import bytes_to_str

from fdbqueue.core.database import Database, run
from fdbqueue.core.errors import UnknownBrokerUrl
from fdbqueue.core.once import run_once
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.seam import Transaction
from fdbqueue.integrations.celery import databases
from fdbqueue.integrations.celery.databases import SCHEME, require_threads, transaction, url_of
from fdbqueue.integrations.common import Results

SWEPT = 4
"""Unfinished chords that have ended, which the start of another one removes."""

_ONE = (1).to_bytes(8, "little")


def begin_chord(database: Database, chord: str, size: int, ttl_s: float | None) -> None:
    """Note the number of parts of a chord; some may have returned. All goes after `ttl_s`, None for never."""

    def body(tr: Transaction) -> None:
        under = databases.chord_ends_until(database.runtime.now_us())
        for row in tr.snapshot.get_range(under.start, under.stop, limit=SWEPT).to_list():
            tr.clear(row.key)
            _clear_chord(tr, databases.chord_end_of(row.key))
        tr.set(databases.size(chord), size.to_bytes(8, "little"))
        _note_end_of_chord(tr, database, chord, ttl_s)

    run(database, body)


def extend_chord(database: Database, chord: str, part: str) -> None:
    """One part more, the task `part`, which a part of the chord has added."""
    run(database, lambda tr: tr.set(databases.added(chord, part), b""))


def part_returned(database: Database, chord: str, index: int, part: str, ttl_s: float | None) -> None:
    """Count a part. A part that returns twice conflicts; the counter does not, as it is read by snapshot."""

    def body(tr: Transaction) -> None:
        mark, count = tr.get(databases.part(chord, index, part)), tr.snapshot.get(databases.count(chord))
        if mark.present():  # a second delivery, or a commit with an unknown result
            return
        if not count.present():  # the first part; or a late copy of one, after the end of the chord
            _note_end_of_chord(tr, database, chord, ttl_s)
        tr.set(databases.part(chord, index, part), b"")
        tr.add(databases.count(chord), _ONE)

    run(database, body)


def _note_end_of_chord(tr: Transaction, database: Database, chord: str, ttl_s: float | None) -> None:
    if ttl_s is not None:
        tr.set(databases.chord_end(database.runtime.now_us() + round(ttl_s * 1_000_000), chord), b"")


def chord_is_complete(database: Database, chord: str) -> bool:
    """True if all parts have returned, and none has claimed the chord."""
    return run(database, lambda tr: _is_complete(tr, chord))


def parts_of_chord(database: Database, chord: str) -> list[str]:
    """The parts that have returned, in the order of the header."""
    under = databases.parts(chord)
    rows = run(database, lambda tr: tr.get_range(under.start, under.stop).to_list())
    return [databases.part_of(row.key) for row in rows]


def ended_chords(database: Database, chord: str) -> bool:
    """True if this call ends the chord, whatever becomes of the result of its commit."""
    return run_once(database, RootKeys(DEFAULT_ROOT), lambda tr: claim_chord(tr, chord), wrote=bool)


def claim_chord(tr: Transaction, chord: str) -> bool:
    """True if this transaction ends the chord. False if it is not complete, or another one has ended it."""
    if not _is_complete(tr, chord):
        return False
    _clear_chord(tr, chord)
    return True


def _is_complete(tr: Transaction, chord: str) -> bool:
    under = databases.all_added(chord)
    count, size, added = (
        tr.get(databases.count(chord)),
        tr.get(databases.size(chord)),
        tr.get_range(under.start, under.stop),
    )
    return bool(size.present()) and _number(count.value) >= _number(size.value) + len(added.to_list())


def _number(value: bytes | None) -> int:
    return int.from_bytes(bytes(value or b""), "little")


def _clear_chord(tr: Transaction, chord: str) -> None:
    for under in (databases.parts(chord), databases.all_added(chord)):
        tr.clear_range(under.start, under.stop)
    tr.clear(databases.count(chord))
    tr.clear(databases.size(chord))


_log = get_logger(__name__)
_INDEX_MAX = 2**31
SPACE = "celery"
"""The space of the results of Celery."""


class Backend(KeyValueStoreBackend):
    supports_native_join = True
    supports_autoexpire = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app, url=url, **kwargs)
        require_threads()
        self._url = url_of(url or "")

    @property
    def database(self) -> Database:
        # Looked up each time: a forked child may have to open its own.
        return databases.at(self._url)

    @property
    def results(self) -> Results:
        return Results(self.database, SPACE)

    def as_uri(self, include_password: bool = False) -> str:  # noqa: ARG002  # the URL has none
        return f"{SCHEME}+{str(self.url).removeprefix(f'{SCHEME}+')}"

    # Values by name.

    def get(self, key: bytes) -> bytes | None:
        return self.results.get([key])[0]

    def mget(self, keys: list[bytes]) -> list[bytes | None]:
        return self.results.get(keys)

    def set(self, key: bytes, value: Any) -> None:
        self.results.store(key, _bytes(value), self.expires or None)

    def delete(self, key: bytes) -> None:
        self.results.delete(key)

    def expire(self, key: bytes, value: Any) -> None:
        self.results.expire(key, value or None)

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **_: Any
    ) -> Any:
        """Store the state of a task in one transaction. A success stays, also after a second delivery."""
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = bytes_to_str(task_id)
        key = self.get_key_for_task(task_id)
        self.results.store(
            key,
            _bytes(self.encode(meta)),
            self.expires or None,
            keeps=lambda stored: bool(self.decode_result(stored)["status"] == states.SUCCESS),
        )
        return result

    # Waits.

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Any = None,
    ) -> Any:
        """The state of a task that has ended. Raises: celery.exceptions.TimeoutError."""
        self._ensure_not_eager()
        found = self.get_many([task_id], timeout, interval, no_ack, on_interval=on_interval)
        return next(iter(found))[1]

    def get_many(
        self,
        task_ids: Any,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,  # noqa: ARG002  # the interface of Celery
        on_message: Any = None,
        on_interval: Any = None,
        max_iterations: int | None = None,
        READY_STATES: Any = states.READY_STATES,  # noqa: N803, ARG002
    ) -> Iterator[tuple[str, Any]]:
        """The states of tasks, as they end. Raises: celery.exceptions.TimeoutError."""
        clock = self.database.runtime.monotonic
        until = None if timeout is None else clock() + timeout
        names = {self.get_key_for_task(task_id): bytes_to_str(task_id) for task_id in set(task_ids)}
        rounds, has_ended = 0, lambda value: self.decode_result(value)["status"] in states.READY_STATES
        while names:
            left = None if until is None else max(0.0, until - clock())
            ready = self.results.wait(list(names), has_ended, left, on_interval, interval or 0.5)
            for key, value in ready.items():
                meta = self.decode_result(value)
                if on_interval is not None and meta["status"] in states.PROPAGATE_STATES:
                    on_interval()  # raises the error of a parent, such as a part of a chord, if there is one
                task_id = names.pop(key)
                self._cache[task_id] = meta
                if on_message is not None:
                    on_message(meta)
                yield task_id, meta
            rounds += 1
            if not ready and until is not None and clock() >= until:
                raise TimeoutError(f"The operation timed out ({timeout} s)")
            if max_iterations and rounds >= max_iterations:
                return

    # Chords.

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        begin_chord(self.database, group_id, chord_size, self._chord_result_expires or None)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        extend_chord(self.database, chord_id, str(result.id))

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Store the shape of a header with groups in it: its results are joined in that shape.

        The parts of a generator are sent as they come. It is not read here, so its results are joined flat.
        """
        chord, parts = header_result_args
        if type(parts) is list and any(isinstance(part, GroupResult) for part in parts):
            self.app.GroupResult(chord, parts).save(backend=self)

    def on_chord_part_return(self, request: Context, state: str, result: Any, **kwargs: Any) -> None:  # noqa: ARG002
        """Count a part of a chord, and put the task of its body if it was the last one."""
        chord, part = request.group, request.id
        if not chord or not part:
            return
        value = self.encode([part, state, self.encode_result(result, state)])
        ttl_s = self._chord_result_expires or None
        self.results.store(self._part(chord, part), _bytes(value), ttl_s)
        index = _INDEX_MAX if request.group_index is None else int(request.group_index)
        part_returned(self.database, chord, index, part, ttl_s)
        if chord_is_complete(self.database, chord):
            self._finish_chord(chord, maybe_signature(request.chord, app=self.app))

    def _finish_chord(self, chord: str, callback: Any) -> None:
        parts = parts_of_chord(self.database, chord)
        try:
            values = self._joined(chord, parts)
        except Exception as error:
            if ended_chords(self.database, chord):
                _log.exception("chord %r: %r", chord, error)
                self.chord_error_from_stack(callback, error)
            return
        self._send_body(chord, callback, values)
        for part in parts:
            self.results.delete(self._part(chord, part))

    def _send_body(self, chord: str, callback: Any, values: list[Any]) -> None:
        """Put the task of the body in the transaction that claims the chord, if the broker is there, too."""
        if self._has_broker():

            def body(tr: Transaction) -> None:
                if claim_chord(tr, chord):
                    with transaction(tr):
                        callback.delay(values)

            run(self.database, body)
        elif ended_chords(self.database, chord):
            self.app.amqp._retry_publish(callback.delay, values)

    def _has_broker(self) -> bool:
        conf = self.app.conf
        address = str(conf.broker_write_url or conf.broker_url or "")
        try:
            return address.startswith(SCHEME) and url_of(address) == self._url
        except UnknownBrokerUrl:
            return False

    def _joined(self, chord: str, parts: list[str]) -> list[Any]:
        """The results of a header, in order. Raises: ChordError."""
        header = GroupResult.restore(chord, backend=self, app=self.app)
        if header is None:
            stored = self.results.get([self._part(chord, part) for part in parts])
            return [self._part_result(part, value) for part, value in zip(parts, stored, strict=True)]
        header.on_ready()
        with allow_join_result():
            joined: list[Any] = header.join_native(
                timeout=self.app.conf.result_chord_join_timeout, propagate=True
            )
        return joined

    def _part_result(self, part: str, value: bytes | None) -> Any:
        if value is None:
            raise ChordError(f"The result of {part} is over")
        _, state, result = self.decode(value)
        if state in states.EXCEPTION_STATES:
            result = self.exception_to_python(result)
        if state in states.PROPAGATE_STATES:
            raise ChordError(f"Dependency {part} raised {result!r}") from result
        return result

    def _part(self, chord: str, part: str) -> bytes:
        name: bytes = self.get_key_for_group(chord, f".part.{part}")
        return name

    def __reduce__(self, args: Any = (), kwargs: Any = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "expires": self.expires, "url": self.url})


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
