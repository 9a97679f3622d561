"""The names that a release has given to programs are still there."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.public.json_fields import LEFT_OUT, commands_with_json
from tests.public.names import Names, present

RELEASES = sorted(Path(__file__).parent.glob("[0-9]*.json"))


@pytest.fixture(scope="module")
def now() -> Mapping[str, Names]:
    return present()


def missing(released: Names, now: Names) -> list[str]:
    """The names that `now` lacks, and each part of a name that it lacks."""
    gone = [name for name in released if name not in now]
    lost = [
        f"{name}: {part}"
        for name, parts in released.items()
        if name in now
        for part in set(parts) - {*now[name]}
    ]
    return [*gone, *lost]


def test_a_missing_name_and_a_missing_part_are_told() -> None:
    assert missing({"a": ["x", "y"], "b": []}, {"a": ["y", "z"], "c": []}) == ["b", "a: x"]


def test_each_command_with_json_is_run_or_left_out(now: Mapping[str, Names]) -> None:
    run = {name.removeprefix("fdbqueue ") for name, fields in now["json"].items() if fields}
    assert run | {*LEFT_OUT} == {*commands_with_json()}
    assert not run & {*LEFT_OUT}


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_the_names_of_a_release_are_there(release: Path, now: Mapping[str, Names]) -> None:
    released = json.loads(release.read_text())
    assert released.keys() <= now.keys()
    for what, names in released.items():
        assert len(names) > 10
        assert missing(names, now[what]) == [], what
