"""A mail for each new user, and another one a second later, with Taskiq."""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from taskiq import AsyncTaskiqTask, TaskiqScheduler

from fdbqueue import aio
from fdbqueue.integrations.taskiq import FdbQueueBroker, FdbQueueResults, FdbQueueScheduleSource

broker = FdbQueueBroker()  # the database of $FDBQUEUE_URL, or ./fdbqueue-data
results = FdbQueueResults[str](broker, ttl_s=3_600)
broker.with_result_backend(results)
schedules = FdbQueueScheduleSource(broker)
scheduler = TaskiqScheduler(broker, [schedules])


@broker.task("welcome")  # a name of its own: the module has another one as a program
async def welcome(name: str) -> str:
    return f"welcome, {name}"


@broker.task("remind", queue_name="reminders", priority=5)
def remind(name: str) -> str:
    return f"still there, {name}?"


@aio.transactional
async def sign_up(tr: aio.Transaction, name: str) -> AsyncTaskiqTask[str]:
    tr[b"users/" + name.encode()] = b"1"
    with broker.within(tr):
        return await welcome.kiq(name)


async def main(name: str) -> None:
    await broker.startup()
    sent = await sign_up(await broker.database(), name)
    print((await sent.wait_result(timeout=60)).return_value)
    later, task_id = datetime.now(UTC) + timedelta(seconds=1), f"remind-{name}"
    await remind.kicker().with_task_id(task_id).schedule_by_time(schedules, later, name)
    if await results.wait(task_id, timeout_s=60):
        print((await results.get_result(task_id)).return_value)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
