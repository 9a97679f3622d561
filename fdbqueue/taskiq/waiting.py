"""Waits for a result on a watch: `await task.wait_result()` of a task of our broker polls nothing."""

from typing import Any, ParamSpec, TypeVar

from taskiq import AsyncTaskiqDecoratedTask, AsyncTaskiqTask, TaskiqResult
from taskiq.exceptions import TaskiqResultTimeoutError
from taskiq.kicker import AsyncKicker

from fdbqueue.taskiq.results import FdbQueueResults

P = ParamSpec("P")
T = TypeVar("T")


class WatchedTask(AsyncTaskiqTask[T]):
    """A task that was sent."""

    async def wait_result(
        self, check_interval: float = 0.2, timeout: float = -1.0, with_logs: bool = False
    ) -> TaskiqResult[T]:
        """The result, as soon as there is one. Another result backend is asked every `check_interval`.

        Raises: TaskiqResultTimeoutError after `timeout` seconds, for ever if it is not positive.
        """
        if not isinstance(self.result_backend, FdbQueueResults):
            return await super().wait_result(check_interval, timeout, with_logs)
        if not await self.result_backend.wait(self.task_id, timeout if timeout > 0 else None):
            raise TaskiqResultTimeoutError(timeout=timeout)
        return await self.get_result(with_logs)


class _Kicker(AsyncKicker[P, T]):
    async def kiq(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        sent: Any = await super().kiq(*args, **kwargs)
        return WatchedTask(sent.task_id, sent.result_backend, sent.return_type)


class WatchingTask(AsyncTaskiqDecoratedTask[P, T]):
    """A function of the program that `broker.task` has made a task."""

    def kicker(self) -> AsyncKicker[P, T]:
        return _Kicker(self.task_name, self.broker, dict(self.labels), self.return_type)
