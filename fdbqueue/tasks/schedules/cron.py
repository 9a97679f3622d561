"""Cron expressions, by the library CronSim. Needs the extra `schedules`."""

from collections.abc import Iterator
from datetime import datetime

from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.extras import needs

with needs("schedules", "cronsim"):
    from cronsim import CronSim, CronSimError


def times_from(expression: str, start: datetime) -> Iterator[datetime]:
    """The times of an expression behind `start`, in order, in its time zone.

    In the second pass through an hour that exists twice, the library may begin with a time of the first pass.
    """
    try:
        return CronSim(expression, start)
    except (CronSimError, ValueError) as reason:
        wanted = f"a cron expression of five fields, or of six with the seconds first ({reason})"
        raise InvalidArgument(name="expression", wanted=wanted, got=expression) from reason
