"""Each action of the command line leaves a line with its effect, and `audit` lists the last ones."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fdbqueue import TaskQueue
from fdbqueue.core import limits
from fdbqueue.core.database import run
from fdbqueue.core.errors import TaskNotFound
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.operate import audit
from fdbqueue.operate.audit import Deed, Trail
from tests.cli.shell import Within


@pytest.fixture
def shop(program: Within, monkeypatch: pytest.MonkeyPatch) -> Within:
    monkeypatch.setenv("FDBQUEUE_ACTOR", "ann")
    assert program.run("create", "shop", "--kind", "limfifottl", "--capacity", "10")[0] == 0
    return program


def told(program: Within, *words: str) -> list[tuple[object, ...]]:
    names = ("actor", "action", "queue", "subject", "phase", "tasks")
    return [tuple(row[name] for name in names) for row in program.rows("audit", *words)]


def test_an_action_is_one_line_with_both_values(shop: Within) -> None:
    shop.run("alter", "shop", "--capacity", "5")
    shop.run("pause", "shop")
    paused, altered, created = shop.rows("audit", "shop")
    assert (paused["before"], paused["after"]) == ({"paused": "False"}, {"paused": "True"})
    assert (altered["before"], altered["after"]) == ({"capacity": "10"}, {"capacity": "5"})
    assert (created["action"], created["after"]["capacity"]) == ("create", "10")
    assert shop.run("audit", "other")[1] == ""


def test_a_line_tells_weights_and_the_time_of_a_pause(
    program: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.run("create", "fair", "--kind", "fair", "--weight", "ann=2")
    program.run("alter", "fair", "--weight", "sesame=3", "--weight", "[1,2]=4")
    program.run("fleet", "pause", "--for", "60", "--detach")
    paused, altered, _ = program.rows("audit")
    assert paused["after"] == {"paused": "True", "for_s": "60"}
    assert altered["before"] == {"weights": '["ann=2"]'}
    assert altered["after"] == {"weights": '["sesame=3", "[1,2]=4"]'}
    monkeypatch.setenv("FDBQUEUE_REDACT", "key")
    _, hidden, created = program.rows("audit")
    assert (hidden["before"], created["after"]["weights"]) == ({"weights": '["***=2"]'}, '["***=2"]')
    assert hidden["after"]["weights"] == '["***=3", "***=4"]'
    for command in ("audit", "alter fair", "alter fair --json", "alter fair --weight c=5"):
        assert "sesame" not in "".join(map(str, program.run(*command.split()))), command


def test_hidden_weights_that_were_cut_tell_no_part_of_a_key(
    program: Within, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is cut in its middle: within a key, and between two of them."""
    long = ("--weight", f"{'sesame' * 20}=2", "--weight", f"{'b' * 83}=3", "--weight", "c=4")
    program.run("create", "fair", "--kind", "fair", *long)
    program.run("create", "other", "--kind", "fair", "--weight", f"{'sesame' * 50}=2")
    for row in program.rows("audit"):
        assert "..." in row["after"]["weights"]
    monkeypatch.setenv("FDBQUEUE_REDACT", "key")
    assert "sesame" not in program.run("audit", "--json")[1]
    assert [row["after"]["weights"] for row in program.rows("audit")] == ['["***=2"]', "***"]


def test_each_task_of_a_command_has_a_line(shop: Within) -> None:
    shop.run("put", "shop", "1", "2")
    first, second = (row["id"] for row in shop.rows("tasks", "shop"))
    shop.run("bury", "shop", first, second)
    shop.run("delete", "shop", first, "0" * 32)
    lines = told(shop, "shop")[:-1]
    assert lines == [
        ("ann", "delete", "shop", first, "done", 1),
        ("ann", "bury", "shop", second, "done", 1),
        ("ann", "bury", "shop", first, "done", 1),
    ]
    assert [row["before"] for row in shop.rows("audit", "-n", "2")] == [
        {"state": "buried"},
        {"state": "ready"},
    ]


def test_a_change_of_many_tells_its_end_and_number(shop: Within) -> None:
    shop.run("put", "shop", "1", "2", "3")
    shop.run("change", "shop", "--where", "data.card=4111", "--set", "pri=3", "--dry-run")
    shop.run("change", "shop", "--set", "pri=3")
    shop.run("truncate", "shop", "--yes")
    shop.run("drop", "shop", "--yes")
    ended = [line for line in told(shop) if line[4] == "ended"]
    assert [(line[1], line[5]) for line in ended] == [("drop", 0), ("truncate", 3), ("change", 3)]
    assert len(told(shop)) == 7


def test_a_refused_command_and_usual_work_leave_none(shop: Within) -> None:
    before = told(shop)
    shop.run("create", "shop")
    shop.run("drop", "shop")
    shop.run("alter", "shop")
    shop.run("cancel", "shop", "0" * 32)
    shop.run("put", "shop", "1")
    _, token, _ = shop.run("take", "shop")[1].split("\t")
    shop.run("drop", "shop", "--yes")
    shop.run("ack", "shop", token)
    assert told(shop) == before


def test_limits_and_schedules_have_lines(shop: Within) -> None:
    shop.run("limit", "set", "api", "--slots", "2")
    shop.run("schedule", "create", "nightly", "shop", "--every", "60", "--data", "secret")
    shop.run("schedule", "pause", "nightly")
    shop.run("limit", "delete", "api")
    shop.run("limit", "delete", "api")
    assert [line[1:4] for line in told(shop)[:-1]] == [
        ("limit delete", "", "api"),
        ("schedule pause", "", "nightly"),
        ("schedule create", "shop", "nightly"),
        ("limit set", "", "api"),
    ]
    assert "secret" not in shop.run("audit", "--json")[1]


def test_the_oldest_lines_go(shop: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_LINES", 10)
    monkeypatch.setattr(limits, "AUDIT_CLEARED", 5)
    with shop.opened("shop") as (db, queue):
        for number in range(40):
            queue.pause(Trail(db, shop.space, Deed("ann", f"pause {number}", "shop")).over())
        keys = RootKeys(shop.space)
        lines = run(db, lambda tr: audit.lines(tr, keys))
        assert 10 <= len(lines) < 15
        assert [line.action for line in lines] == [f"pause {n}" for n in range(39, 39 - len(lines), -1)]
        assert run(db, lambda tr: int.from_bytes(tr[keys.audit_count], "little")) == len(lines)


def test_damaged_rows_stop_no_action(shop: Within) -> None:
    with shop.opened("shop") as (db, _):
        keys = RootKeys(shop.space)
        db[keys.audit.start + b"\x1c\xff"] = db[keys.audit_line(10**18, b"x")] = db[keys.audit_count] = b"odd"
    assert shop.run("pause", "shop")[0] == 0
    assert [line[1] for line in told(shop)] == ["pause", "create"]


def test_a_wrong_clock_does_not_change_the_order(shop: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    with shop.opened("shop") as (db, queue):
        now = db.runtime.now()
        for number, shift in enumerate((0, 3600, -3600)):
            monkeypatch.setattr(type(db.runtime), "now", lambda *_, at=now + shift: at)
            queue.pause(Trail(db, shop.space, Deed("ann", str(number), "shop")).over())
        lines = run(db, lambda tr: audit.lines(tr, RootKeys(shop.space)))
        assert [line.action for line in lines[:3]] == ["2", "1", "0"]


def test_plain_calls_on_the_same_queue_note_nothing(shop: Within) -> None:
    with shop.opened("shop") as (db, queue):
        assert isinstance(queue, TaskQueue)
        before = told(shop)
        noting = Trail(db, shop.space, Deed("ann", "pause", "shop")).over()
        queue.put(db, 1)
        queue.peek(noting, queue.put(db, 2).id)
        assert told(shop) == before


def test_the_line_comes_with_the_first_transaction_that_commits(shop: Within) -> None:
    with shop.opened("shop") as (db, queue):
        id_, before = queue.put(db, 1).id, told(shop)
        for is_bulk, phases in ((False, ["done"]), (True, ["ended", "begun"])):
            trail = Trail(db, shop.space, Deed("ann", "bury", "shop", is_bulk=is_bulk))
            noting = trail.over()
            with pytest.raises(TaskNotFound):
                queue.bury(noting, "0" * 32)
            trail.end(stopped=True)
            assert told(shop) == before
            queue.bury(noting, id_)
            queue.kick(noting)
            trail.end()
            assert [line[4] for line in told(shop)[: -len(before)]] == phases
            before = told(shop)


def test_actions_at_the_same_time_have_a_line_each(shop: Within, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_LINES", 20)
    monkeypatch.setattr(limits, "AUDIT_CLEARED", 5)
    with shop.opened("shop") as (db, queue), ThreadPoolExecutor(8) as pool:
        ids = [task.id for task in queue.put_many(db, [1] * 8)]

        def act(id_: str) -> list[str]:
            names = [f"{id_} {number}" for number in range(6)]
            for name in names:
                database = Trail(db, shop.space, Deed("ann", name, "shop", id_, tasks=1)).over()
                queue.bury(database, id_) if name.endswith(("0", "2", "4")) else queue.kick(database)
            return names

        acted = {name for names in pool.map(act, ids) for name in names}
        keys = RootKeys(shop.space)
        found = [line.action for line in run(db, lambda tr: audit.lines(tr, keys))]
        assert len(found) == len({*found})
        assert {*found} - {"create"} <= acted
        assert 20 <= len(found) <= 25 + 8
        assert run(db, lambda tr: int.from_bytes(tr[keys.audit_count], "little")) == len(found)
