"""One commit for all processes of a directory: who leads, what the others ask of it, what it answers.

The file `commits.1` (another number when its contents take another form) has a seat for each of the processes
that commit at the same time. One that finds somebody leading writes its requests at its seat and waits;
whoever leads next commits the requests of all seats with its own, in one LMDB transaction, and leaves the
answers there.

    epoch                the number of the last leader that came to its end
    committing           the version that the leader commits for others too; 0 once they have their answers
    short                1 while the reserve is not whole (reserve.py)
    magic                of this file; 0 in one of an earlier release. What is damaged is made anew
    asked, answered      a number per seat: a request is pending while they differ; no number is used twice
    lengths, bodies      the requests of a seat (request.py)
    versions, results    what came of them: orders within the version, or minus an error's code

The leader is whoever holds the lock of the byte that is named by the next epoch; the kernel takes it from
the dead. That byte is what all others wait for. Nobody else touches `answered`, and what becomes of a request
is decided in the leader's LMDB transaction, so it is committed at most once:

- A leader killed before its LMDB transaction is committed has done nothing; its successor finds the requests
  pending. One killed afterwards has left `committing`, and the answers in the commit log, from where its
  successor delivers them before it looks for what is pending.
- Requests of the dead are passed over. A seat is taken by leaders only, so no request of a former owner is
  mistaken for one of the new.
- Answers in the log are of the file that they were asked in: numbers of another one (restored, or made anew
  while somebody still has the old one open) would be mistaken for those of this.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from fdbqueue.embedded import bytelocks
from fdbqueue.embedded.directory import Directory
from fdbqueue.errors import DatabaseClosed
from fdbqueue.runtime import RealRuntime, Runtime

_FILE = "commits.1"
_SEATS = 256
REQUESTS_MAX = 64
BODY_BYTES_MAX = 128 * 1024
NO_ROOM = 1_000_000  # among the results: no code of FoundationDB's, but StorageFull
_PAUSE_AFTER_A_DEATH_S = 0.001

_MAGIC = int.from_bytes(b"fdbqpool", "big")
_EPOCH_MAX = 1 << 60  # the byte of a lock has to have 63 bits
_NUMBERS = 8 * _SEATS
_ASKED = 64
_ANSWERED = _ASKED + _NUMBERS
_LENGTHS = _ANSWERED + _NUMBERS
_VERSIONS = _LENGTHS + _NUMBERS
_RESULTS = _VERSIONS + _NUMBERS
_HEADER_BYTES = _RESULTS + 4 * REQUESTS_MAX * _SEATS
_BODIES = 1 << 20
# Lock bytes lie beyond anything that is ever written.
_SEAT_LOCKS = 1 << 40
_EPOCH_LOCKS = 1 << 41


class PoolDamaged(OSError):
    """The file holds what no process can have written."""


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The results of the requests that a process asked at a seat under a number."""

    seat: int
    number: int
    results: Sequence[int]


@dataclass(frozen=True)
class Asked:
    """Requests that are pending at a seat."""

    seat: int
    number: int
    body: bytes


class Pool:
    """This process's view of the pooled commits of one directory; for one thread at a time."""

    def __init__(self, directory: Directory, runtime: Runtime) -> None:
        """Raises UnsafePath, PoolDamaged; OSError where there is no room for the file, or it has no locks."""
        self._runtime = runtime
        # Closed with its last reference: until then a thread may be using it.
        self._lock_file = bytelocks.LockFile(directory, _FILE)
        self._map = self._lock_file.map(_HEADER_BYTES)
        self.file = os.fstat(self._fd).st_ino
        numbers = memoryview(self._map)
        self._marks = numbers[:32].cast("Q")
        self._asked = numbers[_ASKED:_ANSWERED].cast("Q")
        self._answered = numbers[_ANSWERED:_LENGTHS].cast("Q")
        self._lengths = numbers[_LENGTHS:_VERSIONS].cast("Q")
        self._versions = numbers[_VERSIONS:_RESULTS].cast("Q")
        self._results = numbers[_RESULTS:].cast("i")
        self._seat: int | None = None
        self._looked_for_seat = False
        self._asking = False
        self._next = 0  # the epoch that this process leads, or waits for
        self._closed = False
        self._require_sound()

    def _require_sound(self) -> None:
        epoch, _, magic, _ = self._marks
        if magic not in (0, _MAGIC) or epoch > _EPOCH_MAX or max(self._lengths) > BODY_BYTES_MAX:
            raise PoolDamaged
        self._marks[2] = _MAGIC

    @property
    def _fd(self) -> int:
        return self._lock_file.fd

    # -- leading ----------------------------------------------------------------------------------------

    def try_lead(self) -> bool:
        """Become the leader, if nobody is. Raises PoolDamaged, DatabaseClosed."""
        if self._closed:
            raise DatabaseClosed
        while True:
            self._next = self._marks[0] + 1
            if self._next > _EPOCH_MAX:
                raise PoolDamaged
            if not bytelocks.try_lock(self._fd, _EPOCH_LOCKS + self._next):
                return False
            if self._marks[0] + 1 == self._next:
                return True
            self._unlock()  # of an epoch that is over

    def wait(self) -> None:
        """Until whoever was found leading has come to its end."""
        bytelocks.wait_until_free(self._fd, _EPOCH_LOCKS + self._next)
        if self._marks[0] + 1 == self._next:
            # It died. Those who waited are in each other's way: they lock, for a moment, what they wait for.
            self._runtime.sleep(_PAUSE_AFTER_A_DEATH_S * self._runtime.random())

    def resign(self) -> None:
        self._marks[0] = self._next
        self._unlock()

    def _unlock(self) -> None:
        bytelocks.unlock(self._fd, _EPOCH_LOCKS + self._next)

    @property
    def unanswered_version(self) -> int:
        """What the last leader was committing when it died; 0 when it did not."""
        return self._marks[1]

    def note_committing(self, version: int) -> None:
        """From here on the commit log is asked for the answers, should this process die."""
        self._marks[1] = version

    @property
    def is_owed(self) -> bool:
        """Whether a leader has others to answer, for itself or for one that died."""
        return self._marks[1] != 0 or self._map[_ASKED:_ANSWERED] != self._map[_ANSWERED:_LENGTHS]

    def pending(self, *, own_only: bool = False) -> Iterator[Asked]:
        """What is asked by those who live; they take turns at being first."""
        seats = [seat for seat in range(_SEATS) if self._asked[seat] != self._answered[seat]]
        _fence()
        first = self._next % max(1, len(seats))
        if self._asking and self._seat in seats:
            first = seats.index(self._seat)  # what this process waits for does not wait for another leader
        for seat in seats[first:] + seats[:first]:
            is_own = seat == self._seat
            if own_only and not is_own:
                continue
            number = self._asked[seat]
            if self._asking if is_own else bytelocks.is_locked(self._fd, _SEAT_LOCKS + seat):
                body = os.pread(self._fd, self._lengths[seat], _BODIES + seat * BODY_BYTES_MAX)
                yield Asked(seat, number, body)
            else:
                self._answered[seat] = number  # else every leader would look for it again

    def answer(self, version: int, answers: Sequence[Answer]) -> None:
        """Tell them what came of it; done again, it does no harm."""
        due = [answer for answer in answers if self._asked[answer.seat] == answer.number]
        for answer in due:
            self._versions[answer.seat] = version
            at = answer.seat * REQUESTS_MAX
            for result in answer.results:
                self._results[at] = result
                at += 1
        _fence()
        for answer in due:
            self._answered[answer.seat] = answer.number
        self._marks[1] = 0

    def give_up(self, code: int) -> None:
        """Answer all that is pending with an error."""
        results = [-code] * REQUESTS_MAX
        self.answer(0, [Answer(asked.seat, asked.number, results) for asked in self.pending()])

    @property
    def is_short(self) -> bool:
        return self._marks[3] != 0

    def note_short(self, is_short: bool) -> None:
        """Have every leader look for room before it commits."""
        self._marks[3] = is_short

    # -- asking -----------------------------------------------------------------------------------------

    def take_seat(self) -> None:
        """Have a place to ask from, and nothing asked there. For leaders only."""
        if not self._looked_for_seat:
            self._looked_for_seat = True  # where all are taken they will be tomorrow
            seats = range(_SEATS)
            self._seat = next((s for s in seats if bytelocks.try_lock(self._fd, _SEAT_LOCKS + s)), None)
        self.drop()

    @property
    def may_ask(self) -> bool:
        seat = self._seat
        return seat is not None and self._asked[seat] == self._answered[seat]

    def ask(self, body: bytes) -> bool:
        """Ask whoever leads next; False where this process has to lead itself."""
        seat = self._seat
        if seat is None or len(body) > BODY_BYTES_MAX:
            return False
        try:
            written = os.pwrite(self._fd, body, _BODIES + seat * BODY_BYTES_MAX)
        except OSError:
            return False
        if written < len(body):
            return False
        self._lengths[seat] = len(body)
        self._asking = True
        _fence()
        self._asked[seat] += 1
        return True

    def answered(self, count: int) -> tuple[int, list[int]] | None:
        """The version and the results of the `count` requests asked; None while they are pending.

        Raises DatabaseClosed: the seat may be another's by now, and so may the answer.
        """
        seat = self._seat
        if seat is None or self._asked[seat] != self._answered[seat]:
            return None
        _fence()
        at = seat * REQUESTS_MAX
        version, results = self._versions[seat], self._results[at : at + count].tolist()
        if self._closed:
            raise DatabaseClosed
        self._asking = False
        return version, results

    def withdraw(self) -> None:
        """Return once nobody will commit any more what this process has asked, and has not been answered."""
        seat = self._seat
        while seat is not None and not self._closed and self._asked[seat] != self._answered[seat]:
            if self.try_lead():
                self.drop()
                self.resign()
            else:
                self.wait()
        self._asking = False

    def drop(self) -> None:
        """Forget what is asked at the seat of this process. For leaders only."""
        if self._seat is not None:
            self._answered[self._seat] = self._asked[self._seat]
        self._asking = False

    def abandon(self) -> None:
        """After an interrupt, whatever it came between: neither lead nor ask any longer."""
        self._unlock()
        self.withdraw()

    # -- ending -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the seat. The file stays open for the thread that may be using it."""
        self._closed = True
        if self._seat is not None:
            bytelocks.unlock(self._fd, _SEAT_LOCKS + self._seat)


def open_pool(directory: Directory, runtime: Runtime) -> Pool:
    """The pool of a directory, with a new file if that is damaged. Raises UnsafePath, OSError."""
    try:
        return Pool(directory, runtime)
    except PoolDamaged:
        with suppress(FileNotFoundError):  # another process was first
            directory.unlink(_FILE)
        return Pool(directory, runtime)


def _fence() -> None:
    """What lies before is seen by other processes before what lies after; and so is what is read of theirs.

    A processor that reorders (ARM) does not across the release of a lock and its acquisition.
    """
    lock = RealRuntime.lock()
    lock.acquire()
    lock.release()
    lock.acquire()
