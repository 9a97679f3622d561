"""doctor tells of a paused fleet, and of workers of several releases."""

from fdbqueue.fleet.gate import PAUSED, Order
from fdbqueue.fleet.status import Presence, Tally
from fdbqueue.fleet.steering import Member
from fdbqueue.operate.checks import Severity, check_workers


def of_release(version: str) -> Member:
    return Member(b"", Presence("a", 1, ("q",), "f", 1, 0.0, Tally(), (), 0.0, version=version))


def test_workers_of_one_release_are_fine() -> None:
    [found] = check_workers([of_release("1.0"), of_release("1.0")], None, 0.0)
    assert (found.severity, found.text) == (Severity.FINE, "2 of 1.0")
    assert check_workers([], None, 0.0) == []


def test_workers_of_several_releases_are_told() -> None:
    [found] = check_workers([of_release("1.0"), of_release("1.1")], None, 0.0)
    assert (found.severity, found.data) == (Severity.WARNING, {"releases": {"1.0": 1, "1.1": 1}})


def test_a_paused_fleet_is_told_with_its_cure() -> None:
    [found] = check_workers([], Order(PAUSED, 70.0), 10.0)
    assert "paused for 60 s more" in found.text
    assert found.cure == "fdbqueue fleet resume"
