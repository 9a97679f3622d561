"""Taskiq's own tests, as they are, on our broker and result backend (`make upstream` downloads them)."""

from pathlib import Path

import pytest

from tests.frameworks.upstream import passed, place_of, source_of

RELEASE = "taskiq-0.13.0"
OURS = Path(__file__).parent / "upstream"

RUN = {
    "api/test_receiver_task": 3,
    "api/test_scheduler": 2,
    "brokers/test_inmemory": 4,
    "cli/scheduler/test_send_with_timeout": 5,
    "cli/scheduler/test_updater": 2,
    "depends/test_progress_tracker": 4,
    "formatters/test_proxy_formatter": 2,
    "middlewares/test_task_retry": 10,
    "receiver/test_receiver": 30,
    "scheduler/test_label_based_sched": 6,
    "scheduler/test_scheduler": 1,
    "scheduler/test_scheduling_identity": 6,
    "test_exceptions_flow": 4,
    "test_kicker": 3,
    "test_requeue": 2,
    "test_retry_task": 5,
}
"""The files, and the number of their tests that run."""

LEFT_OUT = {
    "test_cannot_listen": "about a broker that has no messages; ours listens",
    "test_error_result": "wants no running task beside a result; ours acks after it",
    "test_inmemory_success": "wants no running task beside a result; ours acks after it",
    "test_per_task_exc_types_matching[SmartRetryMiddleware]": "wants no delay; ours keeps the label `delay`",
    "test_per_task_exc_types_override_global[SmartRetryMiddleware]": "the same",
    "test_progress_tracker_validation_error": "wants an error of pydantic; these cannot be stored",
    "test_result": "wants no running task beside a result; ours acks after it",
    "test_retry_of_custom_exc_types_of_smart_middleware": "wants no delay; ours keeps the label `delay`",
    "test_shutdown": "about a broker that is client and worker at once",
    "test_startup": "about a broker that is client and worker at once",
    "test_sync_decorator_on_async_function": "wants no running task beside a result; ours acks after it",
    "test_wait_result_error": "removes a result from the dictionary of the other backend",
    "test_wait_result_no_result": "the same",
}
"""Tests of these files that do not run, with the reason."""


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("name", RUN)
def test_a_file_of_taskiq_passes(name: str, tmp_path: Path) -> None:
    place = place_of(source_of(RELEASE) / "tests", OURS, tmp_path, "anyio_mode = auto\n")

    assert passed(place, f"tests/{name}.py", LEFT_OUT, "-p", "tests.ours") == RUN[name]
