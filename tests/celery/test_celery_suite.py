"""Celery's own integration tests, as they are, on ours (`make upstream` downloads them)."""

from pathlib import Path

import pytest

from tests.frameworks.upstream import passed, place_of, source_of

RELEASE = "celery-5.7.0"
OURS = Path(__file__).parent / "upstream"

QUICK = {
    "test_canvas.py::test_link_error": 9,
    "test_canvas.py::test_result_set": 7,
    "test_canvas.py::test_signature_serialization": 9,
    "test_canvas.py::test_xmap_xstarmap": 2,
    "test_inspect.py": 12,
    "test_tasks.py::test_class_based_tasks test_tasks.py::test_trace_log_arguments": 3,
    "test_tasks.py::test_task_replacement": 6,
    "test_worker.py": 6,
}
SLOW = {
    "test_beat.py": 32,
    "test_canvas.py::test_chain": 65,
    "test_canvas.py::test_chord": 99,
    "test_canvas.py::test_group": 33,
    "test_canvas.py::test_stamping_mechanism": 12,
    "test_group_chains.py": 21,
    "test_loader.py": 2,
    "test_serialization.py": 1,
    "test_tasks.py::test_apply_tasks": 2,
    "test_tasks.py::test_pool_acquire_timeout": 3,
    "test_tasks.py::test_signal_bound_method_receivers": 3,
    "test_tasks.py::test_task_redis_result_backend": 2,
    "test_tasks.py::test_tasks": 38,
}
"""Classes, or files, and the number of their tests that run. Each has a process and a worker of its own."""

LEFT_OUT = {
    "test_asyncresult_forget_cancels_subscription": "counts subscriptions of Redis",
    "test_asyncresult_get_cancels_subscription": "counts subscriptions of Redis",
    "test_chord_header_id_duplicated_on_rabbitmq": "publishes what RabbitMQ's client drops; fails on Redis",
    "test_chord_on_error": "reads the keys of the backend in Redis",
    "(test_error_propagates_from_chord and not chord2)": "Celery expects a failure on Redis (its issue 6437)",
    "test_ignoring_result_no_subscriptions": "counts subscriptions of Redis",
    "test_redis_subscribed_channels_leak": "counts subscriptions of Redis; Celery expects it to fail",
    "test_multiprocess_producer": "Celery skips it: broken",
    "test_multithread_producer": "Celery skips it: broken",
    "test_task_accepted": "Celery skips it: fails at random",
    "test_scheduled": "wants a task with an eta in the worker; ours waits in the database",
}
"""Tests of these files that do not run, with the reason."""


@pytest.mark.in_turn(4)
@pytest.mark.parametrize(
    ("part", "count"),
    [*QUICK.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in SLOW.items())],
)
def test_a_class_of_celery_passes(part: str, count: int, tmp_path: Path) -> None:
    options = "python_classes = test_*\nxfail_strict = true\n"
    place = place_of(source_of(RELEASE) / "t", OURS, tmp_path, options)
    tasks = place / "t" / "integration" / "test_tasks.py"
    # A wait for lines of the worker, which it logs behind its answer: 10 ms are too short on a busy machine.
    tasks.write_text(tasks.read_text().replace("time.sleep(.01)", "time.sleep(2)"))
    environment = {
        "PYTHONPATH": f"{place}:{place}/t",
        "WORKER_LOGLEVEL": "INFO",  # as in Celery's own CI: tests look for lines of its worker
        "TEST_BROKER": f"fdbqueue+embedded://{tmp_path}/data",
        "TEST_BACKEND": f"redis-by-fdbqueue+embedded://{tmp_path}/data",
    }

    parts = " ".join(f"t/integration/{name}" for name in part.split())
    assert passed(place, parts, LEFT_OUT, "-p", "celery.contrib.pytest", **environment) == count
