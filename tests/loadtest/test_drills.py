"""The judge of a drill finds forged losses, and a broken promise is told."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from fdb.subspace_impl import Subspace

import fdbqueue
from loadtest.drills import regions
from loadtest.drills.load import Witness
from loadtest.ledger import Verdict, judge
from tests.pages.blocks import ROOT, blocks_of

ITEM = ("task", 7)


@pytest.fixture
def memory() -> Iterator[fdbqueue.Database]:
    with fdbqueue.open("memory:") as db:
        yield db


def stored(db: fdbqueue.Database, witness: Witness, delivery: bytes) -> None:
    @fdbqueue.transactional
    def body(tr: Any) -> None:
        witness.consumed(tr, ITEM, delivery)

    body(db)


def judged(db: fdbqueue.Database, *, confirmed: bool, in_memory: str = "", in_database: str = "") -> Verdict:
    """Each letter is a delivery, known to the process or to the database."""
    witness = Witness(Subspace(("drill",)))
    witness.begins(ITEM)
    if confirmed:
        witness.confirms(ITEM)
    for letter in in_memory:
        witness.delivers(ITEM, letter.encode())
    for letter in in_database:
        stored(db, witness, letter.encode())
    return judge(db, witness)


def test_a_confirmed_put_that_never_arrives_is_lost(memory: fdbqueue.Database) -> None:
    assert judged(memory, confirmed=True).lost == 1


def test_a_forgotten_ack_counts_beside_the_second_one(memory: fdbqueue.Database) -> None:
    assert judged(memory, confirmed=True, in_memory="ab", in_database="b").twice == 1


def test_an_ack_without_an_answer_counts_if_it_is_stored(memory: fdbqueue.Database) -> None:
    verdict = judged(memory, confirmed=True, in_database="a")
    assert verdict.holds
    assert verdict.consumed == 1


def test_the_same_delivery_in_both_counts_once(memory: fdbqueue.Database) -> None:
    assert judged(memory, confirmed=True, in_memory="a", in_database="a").holds


@pytest.mark.parametrize("deliveries", ["", "a"])
def test_a_put_without_an_answer_may_arrive_or_not(memory: fdbqueue.Database, deliveries: str) -> None:
    verdict = judged(memory, confirmed=False, in_memory=deliveries)
    assert (verdict.doubtful, verdict.lost, verdict.unknown) == (1, 0, 0)


def test_the_page_has_the_configuration_of_the_drill() -> None:
    """But for the numbers of copies: the drill has few servers."""
    blocks = blocks_of("", (ROOT / "docs/backup.md").read_text())
    shown = json.loads(next(block.text for block in blocks if block.language == "json"))
    drilled = regions.configuration(satellite=True)
    primary, remote = drilled["regions"]
    satellite = {"satellite_redundancy_mode": "one_satellite_double", "satellite_logs": 2}
    assert shown == drilled | {"redundancy_mode": "double", "regions": [primary | satellite, remote]}


def test_without_a_satellite_no_region_has_one() -> None:
    assert "satellite" not in json.dumps(regions.configuration(satellite=False))


SOUND = regions.Report(
    puts_before=100,
    first_commit_s=5.0,
    lease_due_s=14.0,
    lease_ended_s=15.0,
    lease_kept=True,
    warned=True,
    returned_s=None,
    silence_s=5.5,
    unknown_results=2,
    verdict=Verdict(produced=200, consumed=200),
)


def test_a_sound_run_breaks_no_promise() -> None:
    assert SOUND.broken == []


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({"verdict": Verdict(produced=200, consumed=199, lost=1)}, "nothing is lost"),
        ({"verdict": Verdict(produced=200, consumed=201, twice=1)}, "nothing comes twice"),
        ({"verdict": Verdict()}, "nothing is lost"),
        ({"verdict": Verdict(produced=200, consumed=200, doubtful=1)}, "has an answer"),
        ({"lease_ended_s": 13.9}, "killed worker"),
        ({"lease_ended_s": 14.1 + regions.SWEPT_WITHIN_S}, "killed worker"),
        ({"lease_kept": False}, "living worker"),
        ({"warned": False}, "doctor"),
    ],
)
def test_each_broken_promise_is_told(change: dict[str, Any], broken: str) -> None:
    told = replace(SOUND, **change).broken
    assert len(told) == 1
    assert broken in told[0]


def test_a_long_takeover_delays_the_end_of_a_lease() -> None:
    """Without a database, no process can end it."""
    late = 14.0 + regions.SWEPT_WITHIN_S + 30
    assert replace(SOUND, first_commit_s=late, lease_ended_s=late).broken == []
