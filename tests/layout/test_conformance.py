"""`fdbqueue conformance` finds each difference of a program, and outlives each of its failures."""

import json
import sys
from collections import Counter

import pytest

from fdbqueue.core import limits
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.operate.cli.commands import cli
from fdbqueue.operate.cli.exits import run
from fdbqueue.operate.conformance import (
    Checked,
    NoAnswer,
    Program,
    Vector,
    Verdict,
    answer_to,
    checked,
    mutated,
    stored_vectors,
    vectors_in,
)

STORED = stored_vectors()
VECTORS = [*vectors_in(STORED)]
REFUSALS = [vector for vector in VECTORS if vector.refuses]
LEFT_TO_FDBQUEUE = {"fifottl-unique": (4, 5), "fifo-groups": (4,), "fifo-limits": (4, 5)}
LEFT_TO_FDBQUEUE |= {"utube-with-partitions": (7, 8), "utube-partitions-held-key": (3, 4, 5, 8)}
LEFT_TO_FDBQUEUE |= {"fifottl-unique-scopes": (9,), "fifottl-leases": (3,)}
OF_A_QUEUE = [vector for vector in VECTORS if vector.name in ("queue#3", "queue#4", "queue#8")]
PUTS = {"put", "put_many", "enqueue", "enqueue_many", "add"}
PATIENCE_S = 60.0


def proved(mistake: str, vectors: list[Vector], timeout_s: float = PATIENCE_S) -> list[Checked]:
    argv = [sys.executable, "-m", "tests.layout.programs", mistake]
    return [*checked(lambda: Program(argv, timeout_s, RealRuntime()), STORED["root"], vectors)]


def test_a_client_written_from_the_page_conforms():
    found = proved("right", VECTORS)
    assert {one.vector.name: one.differences for one in found if one.differences} == {}
    same = Counter(one.vector.kind for one in found if one.verdict == Verdict.SAME)
    assert set(same) == {vector.kind for vector in VECTORS}
    left = {
        one.vector.name for one in found if one.verdict == Verdict.UNSUPPORTED and one.vector.verb in PUTS
    }
    assert left == {f"{name}#{at}" for name, places in LEFT_TO_FDBQUEUE.items() for at in places}


@pytest.mark.parametrize("answer", ["knows nothing", "fails"])
def test_a_refusal_in_any_words_is_the_same(answer):
    assert {one.verdict for one in proved(answer, REFUSALS)} == {Verdict.SAME}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("does nothing", "it does not refuse"),
        ("fails late", "key: the value 'value' in place of no such key"),
    ],
)
def test_a_queue_that_is_not_refused_is_a_difference(answer, told):
    found = proved(answer, REFUSALS)
    assert {one.verdict for one in found} == {Verdict.DIFFERENT}
    assert all(one.differences == [told] for one in found)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("one key too many", "%00: the value 'x' in place of no such key"),
        ("other conflicts", "it must not rely on the range from a to b"),
        ("other result", "it returns ['other'] in place of"),
    ],
)
def test_a_difference_is_told(mistake, told):
    found = proved(mistake, OF_A_QUEUE)
    assert {one.verdict for one in found} == {Verdict.DIFFERENT}
    assert all(any(told in difference for difference in one.differences) for one in found)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("ends", "it has ended with status 7"),
        ("floods", "its answer has more than"),
        ("garbage", "it has answered no JSON"),
        ("other id", "is no object with the id"),
        ("no shape", "its answer has another shape"),
    ],
)
def test_a_failure_is_told(mistake, told, monkeypatch):
    monkeypatch.setattr(limits, "CONFORMANCE_FAILURES_MAX", 1)
    monkeypatch.setattr(limits, "CONFORMANCE_ANSWER_BYTES_MAX", 100_000)
    [found] = proved(mistake, OF_A_QUEUE)
    assert found.verdict == Verdict.FAILED
    assert told in found.differences[0]


def test_a_program_that_has_failed_is_started_again(monkeypatch):
    monkeypatch.setattr(limits, "CONFORMANCE_FAILURES_MAX", 2)
    assert [one.verdict for one in proved("ends", OF_A_QUEUE)] == [Verdict.FAILED] * 2


def test_a_program_that_hangs_costs_its_time_limit(monkeypatch):
    monkeypatch.setattr(limits, "CONFORMANCE_FAILURES_MAX", 1)
    [found] = proved("hangs", OF_A_QUEUE, timeout_s=0.1)
    assert found.differences == ["it has not answered within 0.1 s"]


def test_mutations_make_the_keys_after():
    before = {b"a": b"1", b"b": b"2", b"c": b"\x01\x00", b"d": b"\xff\x00"}
    mutations = [["set", "e", "%00"], ["clear", "a"], ["clear_range", "b", "c"], ["add", "c", "%ff%00"]]
    mutations += [["compare_and_clear", "d", "%ff%00"], ["max", "n", "%05"]]
    assert mutated(before, mutations) == {b"e": b"\x00", b"c": b"\x00\x01", b"n": b"\x05"}


def command(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Run `fdbqueue conformance` in this process. Returns its status, its output and its errors."""
    status = run(cli, ["conformance", *arguments])
    return status, *capfd.readouterr()


def test_the_command_tells_counts_and_a_status(capfd):
    program = [sys.executable, "-m", "tests.layout.programs"]
    status, out, err = command(capfd, "--only", "queue/enqueue", "--json", *program, "right")
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    assert {row["verdict"] for row in rows} == {"same"}
    assert f"{len(rows)} vectors: {len(rows)} same" in err

    status, out, _ = command(capfd, "--only", "queue#3", *program, "one key too many")
    assert status == 1
    assert out.startswith("different\tqueue#3\tenqueue\t%00: ")


def test_refusals_prove_nothing_beside_other_calls(capfd):
    nothing = [sys.executable, "-m", "tests.layout.programs", "knows nothing"]
    refusals = [part for vector in REFUSALS for part in ("--only", vector.name)]
    assert command(capfd, *nothing)[0] == 1
    assert command(capfd, *refusals, *nothing)[0] == 0


def test_a_selection_without_a_vector_is_a_mistake(capfd):
    status, _, err = command(capfd, "--only", "nothing/put", "true")
    assert status == 2
    assert "no vector is one of 'nothing/put'; the kinds are queue, " in err


def test_a_program_that_is_not_there_is_a_mistake(capfd):
    status, _, err = command(capfd, "no-such-program")
    assert status == 2
    assert "no-such-program: No such file or directory" in err


@pytest.mark.parametrize("text", ["%zz", "%4", "half%", "caf\u00e9", "a\nb"])
@pytest.mark.parametrize(
    "part",
    [
        lambda text: {"keys": {text: ""}},
        lambda text: {"keys": {"key": text}},
        lambda text: {"mutations": [["set", "key", text]]},
        lambda text: {"keys": {}, "reads": [text]},
        lambda text: {"keys": {}, "returns": [text]},
    ],
    ids=["key", "value", "mutation", "range", "result"],
)
def test_a_text_that_stands_for_no_bytes_is_no_answer(text, part):
    """The program means other bytes than those that a reader would guess."""
    with pytest.raises(NoAnswer, match="is no text of bytes"):
        answer_to(1, {}, json.dumps({"id": 1} | part(text)).encode())


def test_a_mutation_that_there_is_not_is_named():
    line = b'{"id": 1, "mutations": [["frob", "key", "value"]]}'
    with pytest.raises(NoAnswer, match="there is no mutation 'frob'"):
        answer_to(1, {}, line)
