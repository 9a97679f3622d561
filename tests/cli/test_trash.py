"""`truncate` and `delete --where` move tasks into the trash; `trash` lists, restores and empties it."""

import pytest

from tests.cli.shell import Within


@pytest.fixture
def shop(program: Within, monkeypatch: pytest.MonkeyPatch) -> Within:
    monkeypatch.setenv("FDBQUEUE_ACTOR", "ann")
    program.run("create", "shop", "--kind", "fifottl")
    program.run("put", "shop", "1", "2", "3")
    return program


def test_a_truncate_can_be_undone(shop: Within) -> None:
    assert shop.run("truncate", "shop", "--yes") == (0, "", "fdbqueue: 3 removed\n")
    row = shop.row("trash", "list", "shop")
    assert (row["actor"], row["tasks"], row["until"] - row["at"]) == ("ann", 3, 86_400)
    assert shop.run("trash", "list", "shop")[1].split("\t")[3:] == ["ann", "3", f"{row['size_bytes']}\n"]
    assert shop.row("trash", "restore", "shop", row["id"]) == {"queue": "shop", "restored": 3, "left": 0}
    assert [task["data"] for task in shop.rows("tasks", "shop")] == [1, 2, 3]
    assert shop.run("trash", "list", "shop")[:2] == (0, "")


def test_a_delete_of_tasks_that_match_can_be_undone(shop: Within) -> None:
    shop.run("delete", "shop", "--where", "data=2", "--dry-run")
    assert shop.rows("trash", "list", "shop") == []
    assert shop.row("delete", "shop", "--where", "data=2")["changed"] == 1
    assert shop.run("trash", "restore", "shop") == (0, "", "fdbqueue: 1 restored\n")
    assert len(shop.rows("tasks", "shop")) == 3


def test_without_the_trash_tasks_are_gone_for_good(shop: Within) -> None:
    assert shop.row("delete", "shop", "--where", "data=2", "--no-trash")["changed"] == 1
    assert shop.run("truncate", "shop", "--yes", "--no-trash") == (0, "", "fdbqueue: 2 removed\n")
    assert shop.run("trash", "restore", "shop") == (0, "", "fdbqueue: 0 restored\n")
    assert shop.run("delete", "shop", "0" * 32, "--no-trash")[0] == 2


def test_the_trash_is_emptied_with_yes(shop: Within) -> None:
    shop.run("truncate", "shop", "--yes")
    refused = "fdbqueue: empty would remove 3 tasks for good: confirm with --yes\n"
    assert shop.run("trash", "empty", "shop") == (1, "", refused)
    assert shop.run("trash", "empty", "shop", "--yes") == (0, "", "fdbqueue: 3 removed for good\n")
    for command in ("restore", "empty"):
        assert "one that lies in the trash" in shop.mistake("trash", command, "shop", "odd")


def test_each_way_has_lines_in_the_audit(shop: Within) -> None:
    shop.run("truncate", "shop", "--yes")
    shop.run("trash", "restore", "shop")
    shop.run("delete", "shop", "--where", "data=2")
    shop.run("trash", "empty", "shop", "--yes")
    ended = [(row["action"], row["tasks"]) for row in shop.rows("audit", "shop") if row["phase"] == "ended"]
    assert ended == [("trash empty", 1), ("delete", 1), ("trash restore", 3), ("truncate", 3)]


def test_a_task_whose_key_is_in_use_is_told(shop: Within) -> None:
    shop.run("put", "shop", "4", "--unique", "u")
    shop.run("truncate", "shop", "--yes")
    shop.run("put", "shop", "5", "--unique", "u")
    told = "fdbqueue: 3 restored; 1 task left: unique keys in use, or unreadable\n"
    assert shop.run("trash", "restore", "shop") == (0, "", told)
