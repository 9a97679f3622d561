"""Due times in the workload `exact_schedules`, over plain datetimes: whole microseconds since the epoch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

SECOND = 1_000_000
Test = Callable[[datetime], bool]


def zone_of(name: str) -> tzinfo:
    return UTC if name == "UTC" else ZoneInfo(name)


def local(time: int, zone: tzinfo) -> datetime:
    whole, rest = divmod(time, SECOND)
    return datetime.fromtimestamp(whole, zone).replace(microsecond=rest)


@dataclass(frozen=True)
class Every:
    """Times with the same distance."""

    span: int
    anchor: int

    def after(self, time: int, _: tzinfo) -> int:
        return self.anchor + ((time - self.anchor) // self.span + 1) * self.span


class Passing(NamedTuple):
    """Times that go by the time that passes: of each step, those with the right local time."""

    step: int
    fits: Test

    def after(self, time: int, zone: tzinfo) -> int:
        at = (time // self.step + 1) * self.step
        while not self.fits(local(at, zone)):
            at += self.step
        return at


class Daily(NamedTuple):
    """Fixed times of some days. If a time does not exist on a day, the end of the gap stands for it; if it
    exists twice, the first one does.
    """

    minutes: tuple[int, ...]
    """Of the day."""
    fits: Callable[[date], bool]

    def after(self, time: int, zone: tzinfo) -> int:
        day = local(time, zone).date() - timedelta(days=1)
        while True:
            found = [at for at in self._of(day, zone) if at > time] if self.fits(day) else []
            if found:
                return found[0]
            day += timedelta(days=1)

    def _of(self, day: date, zone: tzinfo) -> Iterator[int]:
        for minute in self.minutes:
            wall = datetime(day.year, day.month, day.day, *divmod(minute, 60), tzinfo=zone)
            at = round(wall.timestamp()) * SECOND
            while local(at, zone).replace(tzinfo=None) < wall.replace(tzinfo=None):
                at += 60 * SECOND
            if wall.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall.replace(tzinfo=None):
                at = self._end_of_gap(at, zone)
            yield at

    def _end_of_gap(self, at: int, zone: tzinfo) -> int:
        """The first minute after the change of the clock, near `at`."""
        offset = local(at, zone).utcoffset()
        while local(at - 60 * SECOND, zone).utcoffset() == offset:
            at -= 60 * SECOND
        return at


def every_day(_: date) -> bool:
    return True


Rule = Every | Passing | Daily
MINUTE = 60 * SECOND
SLOW: dict[str, Rule] = {
    "30 2 * * *": Daily((150,), every_day),
    "0,30 2 * * *": Daily((120, 150), every_day),
    "@daily": Daily((0,), every_day),
    "15 3 * * MON": Daily((195,), lambda day: day.weekday() == 0),
    "0 12 1,29 * *": Daily((720,), lambda day: day.day in (1, 29)),
    "0 0 L * *": Daily((0,), lambda day: (day + timedelta(days=1)).day == 1),
    "7 */6 * * *": Passing(MINUTE, lambda at: at.minute == 7 and at.hour % 6 == 0),
    "*/30 2 * * *": Passing(MINUTE, lambda at: at.minute % 30 == 0 and at.hour == 2),
}
FAST: dict[str, Rule] = {
    "* * * * *": Passing(MINUTE, lambda _: True),
    "*/20 * * * *": Passing(MINUTE, lambda at: at.minute % 20 == 0),
    "7 * * * *": Passing(MINUTE, lambda at: at.minute == 7),
    "* * * * * *": Passing(SECOND, lambda _: True),
    "*/15 * * * * *": Passing(SECOND, lambda at: at.second % 15 == 0),
}
