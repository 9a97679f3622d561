"""Checks of a cluster's status. The samples have the fields of a server 7.3; others may be missing."""

from typing import Any

import pytest

from fdbqueue import Severity
from fdbqueue.core import binding
from fdbqueue.operate.checks import check_client_library, check_clock, check_cluster, check_knobs

HEALTHY: dict[str, Any] = {
    "client": {
        "coordinators": {"quorum_reachable": True},
        "database_status": {"available": True, "healthy": True},
        "messages": [],
    },
    "cluster": {
        "cluster_controller_timestamp": 1_000,
        "data": {"state": {"healthy": True, "name": "healthy"}},
        "messages": [],
        "processes": {
            "a": {
                "command_line": "fdbserver --knob_disable_posix_kernel_aio=1 -p auto",
                "disk": {"free_bytes": 50, "total_bytes": 100},
                "messages": [],
                "version": "7.3.79",
            }
        },
        "qos": {"performance_limited_by": {"name": "workload"}},
        "workload": {"transactions": {"committed": {"hz": 1000.0}, "conflicted": {"hz": 10.0}}},
    },
}


def changed(path: str, value: object, at: Any = None) -> dict[str, Any]:
    """The healthy status with one field changed; `path` has its names, separated by slashes."""
    name, _, rest = path.partition("/")
    found = dict(HEALTHY if at is None else at)
    found[name] = changed(rest, value, found[name]) if rest else value
    return found


def test_a_healthy_cluster_is_fine() -> None:
    assert [check.severity for check in check_cluster(HEALTHY)] == [Severity.FINE]


@pytest.mark.parametrize(
    ("path", "value", "severity", "words"),
    [
        ("client/coordinators/quorum_reachable", False, Severity.FAILURE, "coordinators"),
        ("client/database_status/available", False, Severity.FAILURE, "not available"),
        (
            "cluster/data/state",
            {"healthy": False, "description": "No replicas"},
            Severity.WARNING,
            "No replicas",
        ),
        ("cluster/datacenter_lag", {"seconds": 5.1, "versions": 5_100_000}, Severity.WARNING, "5 s behind"),
        (
            "cluster/qos/performance_limited_by",
            {"name": "storage_server_write_queue_size", "description": "A queue is long."},
            Severity.WARNING,
            "storage_server_write_queue_size",
        ),
        (
            "cluster/qos/batch_performance_limited_by",
            {"name": "storage_server_write_bandwidth_mvcc", "description": "Its memory is full."},
            Severity.WARNING,
            "batch transactions are held back by storage_server_write_bandwidth_mvcc",
        ),
        ("cluster/workload/transactions/conflicted", {"hz": 3000.0}, Severity.WARNING, "3000 commits"),
        ("cluster/processes/a/disk/free_bytes", 4, Severity.WARNING, "4%"),
        (
            "cluster/messages",
            [{"name": "x", "description": "Unreachable."}],
            Severity.WARNING,
            "Unreachable.",
        ),
        ("cluster/processes/a/messages", [{"name": "io_timeout"}], Severity.WARNING, "io_timeout"),
    ],
)
def test_each_trouble_is_told_with_a_cure(path: str, value: object, severity: Severity, words: str) -> None:
    (check,) = check_cluster(changed(path, value))
    assert check.severity == severity
    assert words in check.text
    assert check.cure


@pytest.mark.parametrize("status", [{}, {"client": {}}, {"cluster": {"processes": {"a": {}}}}])
def test_a_missing_field_is_no_trouble(status: dict[str, Any]) -> None:
    assert [check.severity for check in check_cluster(status)] == [Severity.FINE]
    assert check_clock(status, 0) == []
    assert check_knobs(status)[0].data["servers"] == []


def test_a_region_that_is_ahead_or_alone_is_no_trouble() -> None:
    """The lag of a healthy cluster is often below zero, and zero without a second region."""
    lag = changed("cluster/datacenter_lag", {"seconds": -1.7, "versions": -1_698_697})
    assert [check.severity for check in check_cluster(lag)] == [Severity.FINE]


@pytest.mark.parametrize(
    ("regions", "recovery", "severity"),
    [
        (2, "accepting_commits", Severity.WARNING),
        (2, "fully_recovered", Severity.FINE),
        (1, "accepting_commits", Severity.FINE),
    ],
)
def test_a_region_without_logs_is_told(regions: int, recovery: str, severity: Severity) -> None:
    """So it stays as long as the region is away. One region passes through this state in each recovery."""
    configured = changed("cluster/configuration", {"usable_regions": regions})
    (check,) = check_cluster(changed("cluster/recovery_state", {"name": recovery}, configured))
    assert check.severity == severity


def test_conflicts_below_the_commits_are_fine() -> None:
    busy = {"committed": {"hz": 5000.0}, "conflicted": {"hz": 3000.0}}
    (check,) = check_cluster(changed("cluster/workload/transactions", busy))
    assert check.severity == Severity.FINE


def test_servers_of_two_releases_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "library_release", lambda: "7.3.79")  # it needs a loaded client library
    servers = {"a": {"version": "7.3.79"}, "b": {"version": "7.1.61"}}
    (check,) = check_client_library(changed("cluster/processes", servers))
    assert (check.severity, check.data["servers"]) == (Severity.WARNING, ["7.1.61", "7.3.79"])


def test_knobs_of_the_servers_are_told() -> None:
    assert check_knobs(HEALTHY)[0].data["servers"] == ["disable_posix_kernel_aio=1"]


def test_the_clock_of_the_controller_is_compared() -> None:
    """The status has whole seconds."""
    assert check_clock(HEALTHY, 1_004.9) == []
    (check,) = check_clock(HEALTHY, 1_010.0)
    assert (check.severity, check.data) == (Severity.WARNING, {"difference_s": -10.0})


def test_a_full_disk_behind_a_sound_one_is_told() -> None:
    sound, full = ({"disk": {"free_bytes": free, "total_bytes": 100}} for free in (50, 4))
    (check,) = check_cluster(changed("cluster/processes", {"a": sound, "b": full}))
    assert (check.severity, "4%" in check.text) == (Severity.WARNING, True)
