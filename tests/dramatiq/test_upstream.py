"""Dramatiq's own tests, as they are, on our broker and backends (`make upstream` downloads them)."""

from pathlib import Path

import pytest

from tests.frameworks.upstream import passed, place_of, source_of

RELEASE = "dramatiq-2.2.1"
OURS = Path(__file__).parent / "upstream"

RUN = {
    "test_actors": 30,
    "test_barrier": 3,
    "test_broker": 7,
    "test_bucket_rate_limiter": 1,
    "test_callbacks": 4,
    "test_canteen": 3,
    "test_common": 9,
    "test_composition": 20,
    "test_concurrent_rate_limiter": 3,
    "test_encoders": 2,
    "test_generic_actors": 9,
    "test_messages": 3,
    "test_redis": 8,
    "test_results": 19,
    "test_stub_broker": 8,
    "test_window_rate_limiter": 1,
    "test_worker": 2,
}
"""The files, and the number of their tests that run."""

LEFT_OUT = {
    "test_exception_from_actor_doesnt_leak": "replaces a method of another broker; see test_broker.py",
    "test_redis_messages_can_be_dead_lettered": "reads keys of Redis",
    "test_redis_unacked_messages_can_be_requeued": "calls the scripts of Redis",
    "test_redis_requeues_unhandled_messages_on_shutdown": "reads keys of Redis",
    "test_redis_requeues_unhandled_delay_messages_on_shutdown": "reads keys of Redis",
    "test_redis_broker_can_connect_via_url": "connects to Redis",
    "test_redis_broker_can_connect_via_client": "connects to Redis",
    "test_redis_consumer_nack_can_retry_on_connection_error": "replaces a script of Redis",
    "test_redis_consumer_ack_can_retry_on_connection_error": "replaces a script of Redis",
    "test_redis_consumer_nack_does_not_raise_on_missing_id": "nacks a value that is no message of a consumer",
    "test_redis_dead_lettered_messages_are_cleaned_up": "dead letters stay until an operator removes them",
    "test_redis_messages_belonging_to_missing_actors_are_rejected": "reads keys of Redis",
    "test_redis_join_race_condition": "replaces a script of Redis",
    "test_workers_process_messages_in_order": "counts before a consumer may have fetched; see test_broker.py",
}
"""Tests of these files that do not run, with the reason."""


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("name", RUN)
def test_a_file_of_dramatiq_passes(name: str, tmp_path: Path) -> None:
    place = place_of(source_of(RELEASE) / "tests", OURS, tmp_path)

    assert passed(place, f"tests/{name}.py", LEFT_OUT) == RUN[name]
