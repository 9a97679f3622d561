"""docs/testing.md: its examples run, and one finds a bug that is added to it."""

import sys
from pathlib import Path

import pytest

from fdbqueue.testing.engine import KINDS
from fdbqueue.testing.simulate import main
from tests.page import examples_on, page
from tests.system.workloads import all_workloads

PAGE = page("docs/testing.md")


def example() -> str:
    return "\n\n".join(text for text in examples_on(PAGE) if "@workload" in text)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Make the example a module that can be imported, until the test ends."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("fdbqueue.testing.cases._workloads", all_workloads())
    (tmp_path / "shop_example.py").write_text(example())
    monkeypatch.delitem(sys.modules, "shop_example", raising=False)
    return "shop_example"


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("test", ["test_shop", "test_orders_on_a_loop"])
def test_the_example_is_clean(module: str, test: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {module} import {test}; {test}()", namespace)


@pytest.mark.in_turn(4)
def test_the_example_finds_a_handler_without_transaction(tmp_path: Path, module: str) -> None:
    broken = example().replace("@transactional\n", "")
    (tmp_path / f"{module}.py").write_text(broken)
    namespace: dict[str, object] = {}
    with pytest.raises(AssertionError, match="lost: 'customer-"):
        exec(f"from {module} import test_shop; test_shop()", namespace)


def test_the_command_line_finds_it(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--load", module, "--workload", "shop", "--seeds", "0:5"]) == 0
    assert capsys.readouterr().out.startswith("5 seeds, ")


def test_the_page_names_every_fault() -> None:
    assert [name for name in KINDS if f"`{name}`" not in PAGE] == []
