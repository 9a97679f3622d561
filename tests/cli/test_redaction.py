"""A hidden value is in no answer of the command line, and commands that would tell it are refused."""

import json

import pytest

from fdbqueue import Failure, Queue, TaskQueue
from fdbqueue.core.errors import InvalidArgument
from fdbqueue.core.redaction import HIDDEN, redaction_of, whole
from fdbqueue.core.task import Task, TaskState
from fdbqueue.operate.checks import warning
from fdbqueue.operate.cli.redacting import seen_check
from tests.cli.shell import Within
from tests.support import wait_until

SECRET, TOKEN = '4111-"é"-sesame', "s3cr3t-t0ken"
PATHS = "data.card, data.cards.number,headers.token,result,key,unique,limits"
DATA = {"card": SECRET, "name": "ann", "cards": [{"number": SECRET, "kind": "visa"}]}
LOOKS = """
tasks q
tasks q --state buried
tasks q --state taken
tasks q --state delayed
explain q {buried}
explain q {ready}
dead classes q
dead list q
dead show q {buried}
change q --set pri=3 --dry-run
change q --set pri=3
result q {acked}
result q {buried}
ended q
stats q
top q -n 1 --interval 0.1
schedule list
schedule fire
schedule show wrong
limit show api
limit keys api
explain l {limited}
tasks l
stats q --json
top q -n 1 --interval 0.1
schedule show tick
peek plain
verify
doctor
pause q
resume q
dead kick q {buried}
bury q {ready}
kick q
delete q {ready}
cancel q {delayed}
truncate q --yes
trash list q
trash restore q
audit
"""
REFUSED = """
change q --where data.card=x --dry-run --set pri=1
change q --where data.cards=x --dry-run --set pri=1
change q --where headers.token=x --dry-run --set pri=1
delete q --where data=x
tasks q --where data.card=x
tasks q --where data.cards.0.number=x
tasks q --where data.0.card=x
tasks q --where key=x
tasks q --where unique=x
ended q --key x
limit keys api --key x
tasks q --where headers.token=x
dead list q --match 4111
dead kick q --match 4111
redrive start q --match 4111
aside q
export file q
elements export-dirq plain directory
"""


@pytest.fixture
def ids(program: Within, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    made = ("create", "q", "--kind", "utubettl", "--retain", "100")
    assert program.run("limit", "set", "api", "--slots", "1", "--per-key")[0] == 0
    assert program.run(*made)[0] == 0
    assert program.run("create", "l", "--kind", "fifottl", "--task-limit", "api")[0] == 0
    ids = {}
    with program.opened() as (db, queue):
        assert isinstance(queue, TaskQueue)
        for name in ("acked", "buried", "taken"):
            keys = {"key": f"sesame {name}", "unique": f"sesame {name}"}
            ids[name] = queue.put(db, DATA, headers={"token": TOKEN}, result_ttl=100, **keys).id
            task = queue.take(db, 0)
            assert task is not None
            if name == "acked":
                queue.ack(db, task, result={"card": SECRET})
            elif name == "buried":
                told = f"the card {SECRET} of {DATA} with {json.dumps(TOKEN)}"
                queue.bury(db, task, failure=Failure("Declined", told, f"Traceback\n {told}"))
            else:
                queue.detach(db, task, 1_000)
        limited = TaskQueue.open(db, "l", root=program.space)
        limited.put(db, 1, limits={"api": "sesame"})
        assert limited.take(db, 0)
        ids["limited"] = limited.put(db, 1, limits={"api": "sesame"}).id
        ids["ready"] = queue.put(db, DATA, headers={"token": TOKEN}).id
        ids["delayed"] = queue.put(db, DATA, delay=60).id
        Queue.named(db, "plain", root=program.space).enqueue(db, DATA)
    data = json.dumps(DATA)
    made = ("schedule", "create", "tick", "q", "--every", "60", "--data", data, "--header")
    assert program.run(*made, f"token={TOKEN}")[0] == 0
    fail_a_schedule(program)
    monkeypatch.setenv("FDBQUEUE_REDACT", PATHS)
    return ids


def fail_a_schedule(program: Within) -> None:
    """Its error tells the key of a limit."""
    limited = ("--task-limit", "api")
    program.run("create", "r", *limited)
    made = ("schedule", "create", "wrong", "r", "--every", "1", "--limit-key", "api", "sesame")
    assert program.run(*made)[0] == 0
    program.run("drop", "r", "--yes")
    program.run("create", "r")
    wait_until(lambda: program.rows("schedule", "show", "wrong")[0]["in_s"] < 0)
    program.run("schedule", "fire")
    assert "sesame" in program.rows("schedule", "show", "wrong")[0]["error"]


def test_no_look_tells_a_hidden_value(program: Within, ids: dict[str, str]) -> None:
    forms = {SECRET, json.dumps(SECRET)[1:-1], json.dumps(SECRET, ensure_ascii=False)[1:-1], TOKEN, "sesame"}
    stars = 0
    for line in LOOKS.format(**ids).strip().splitlines():
        for more in ((), ("--json",)):
            status, out, err = program.run(*line.split(), *more)
            assert status in (0, 1), (line, err)
            assert not [form for form in forms if form in out + err], (line, out, err)
            stars += (out + err).count(HIDDEN)
    assert stars > 30


@pytest.mark.usefixtures("ids")
def test_commands_that_would_tell_are_refused(program: Within) -> None:
    for line in REFUSED.strip().splitlines():
        status, out, err = program.run(*line.split())
        assert (status, out, "FDBQUEUE_REDACT" in err) == (1, "", True), (line, err)
    assert program.run("change", "q", "--where", "data.name=ann", "--set", "pri=1", "--dry-run")[0] == 0


@pytest.mark.usefixtures("ids")
def test_consumers_get_the_whole_task(program: Within) -> None:
    [taken] = program.rows("take", "q")
    assert (taken["data"], taken["headers"]) == (DATA, {"token": TOKEN})
    assert program.rows("get", "plain")[0]["data"] == DATA


def test_a_wrong_path_is_refused(program: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    program.run("create", "q")
    program.run("put", "q", "1")
    for paths in ("card", "data..card", "dat.card", "key.card", "pri"):
        monkeypatch.setenv("FDBQUEUE_REDACT", paths)
        assert "FDBQUEUE_REDACT must be" in program.mistake("tasks", "q")
    for wrong in ("data.card", [1], 7, ["data."]):
        with pytest.raises(InvalidArgument):
            redaction_of(wrong)
    assert redaction_of([]) is redaction_of(None) is None


def test_a_rule_decides_and_hides_when_it_fails(caplog: pytest.LogCaptureFixture) -> None:
    task = Task("1", TaskState.READY, {"a": 1234, "b": [5678, "x"]}, headers={"h": "long"})
    by_rule = redaction_of(lambda path, value: value == 1234 or path == "headers.h")
    assert by_rule is not None
    seen = by_rule.task(task)
    assert (seen.data, seen.headers) == ({"a": HIDDEN, "b": [5678, "x"]}, {"h": HIDDEN})
    assert by_rule.texts(task)("1234 and 5678, long") == f"{HIDDEN} and 5678, {HIDDEN}"
    for wrong in (lambda *_: 1 / 0, lambda *_: None, lambda: False):
        broken = redaction_of(wrong)
        assert broken is not None
        assert broken.task(task).data == HIDDEN
    assert "redact has failed at headers" in caplog.text
    assert "1234" not in caplog.text


def test_a_payload_without_parts_is_hidden_whole() -> None:
    paths = redaction_of(["data.card"])
    assert paths is not None
    closed = Task("1", TaskState.BURIED, b'{"card": 1}')
    assert paths.task(closed).data == paths.texts(closed)("card 1") == HIDDEN
    assert paths.task(Task("1", TaskState.BURIED, "text")).data == "text"
    assert paths.task(Task("1", TaskState.BURIED, ' {"card": 1}')).data == HIDDEN
    below = redaction_of(["data.user.card"])
    assert below is not None
    within = Task("1", TaskState.BURIED, {"user": b"4111"})
    assert below.task(within).data == {"user": HIDDEN}
    assert below.texts(within)("card 4111") == f"card {HIDDEN}"
    task = Task("1", TaskState.READY, {"a": 1}, headers={"h": "x"})
    assert whole().task(task).data == whole().texts(task)("anything") == HIDDEN


def test_a_short_form_of_a_failure_tells_no_part(program: Within) -> None:
    program.run("create", "q")
    paths = redaction_of(["data.card"])
    assert paths is not None
    with program.opened() as (db, queue):
        assert isinstance(queue, TaskQueue)
        for length in range(0, 120, 4):
            queue.put(db, {"card": "41112222333344445555"})
            task = queue.take(db, 0)
            assert task is not None
            queue.bury(
                db, task, failure=Failure("Declined", f"{'x' * length} 41112222333344445555 {'x' * 99}")
            )
            for seen in (paths, whole()):
                found = seen.explanation(queue.explain(db, task))
                assert not [one for one in found.reasons if "4111" in one.text or "5555" in one.text]
        waiting = whole().explanation(queue.explain(db, queue.put(db, 1)))
        assert waiting.reasons[0].text == queue.explain(db, waiting.task).reasons[0].text


def test_a_diagnosis_tells_no_hidden_key(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = warning("queues", "q has tasks of the key sesame", "", queue="q", key="sesame")
    full = warning("limits", "the key 'sesame' of the limit api is full", "", limit="api", key="'sesame'")
    monkeypatch.setenv("FDBQUEUE_REDACT", "key,limits")
    told = [seen_check(one) for one in (waits, full)]
    assert [one["text"].count(HIDDEN) for one in told] == [1, 1]
    assert "sesame" not in repr(told)
    monkeypatch.setenv("FDBQUEUE_REDACT", "limits")
    assert "sesame" in seen_check(waits)["text"]


def test_a_redrive_and_an_element_hide_their_texts(program: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    program.run("create", "q")
    program.run("redrive", "start", "q", "--match", "sesame", "--detach")
    program.run("elements", "add", "e", "card=sesame", "--create")
    [name] = program.run("elements", "list", "e")[1].split()
    looks = (("redrive", "status", "q"), ("redrive", "status", "q", "--json"), ("elements", "get", "e", name))
    assert all("sesame" in program.run(*words)[1] for words in looks)
    monkeypatch.setenv("FDBQUEUE_REDACT", "data.card")
    for words in looks:
        assert HIDDEN in (told := program.run(*words)[1])
        assert "sesame" not in told
