"""The reference of the site has every public name once, with its contract."""

import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fdbqueue
from fdbqueue import embedded, testing
from fdbqueue.core import errors
from fdbqueue.testing import history
from tests.page import page

pytestmark = [
    pytest.mark.timeout(900),  # the first test builds the site, and another process waits for it
    pytest.mark.in_turn(4, "site"),
]

THE_BINDINGS_OWN = {"tuple", "Subspace", "LATEST_API_VERSION", "impl"}
"""Names of fdbqueue.embedded that the page names in its text."""


def public_names() -> set[str]:
    own = set(fdbqueue.__all__) - set(errors.__all__) | {"open"}
    return {
        *(f"fdbqueue.{name}" for name in own),
        *(f"fdbqueue.errors.{name}" for name in errors.__all__),
        *(f"fdbqueue.embedded.{name}" for name in set(embedded.__all__) - THE_BINDINGS_OWN),
        *(f"fdbqueue.testing.{name}" for name in testing.__all__),
        *(f"fdbqueue.testing.history.{name}" for name in names_imported_by(history)),
    }


def names_imported_by(module: ModuleType) -> set[str]:
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }


def public_members() -> Iterator[str]:
    for name in fdbqueue.__all__:
        found = getattr(fdbqueue, name)
        if inspect.isclass(found) and not issubclass(found, Exception):
            yield from (f"fdbqueue.{name}.{member}" for member in members_of(found))


def members_of(cls: type) -> set[str]:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("fdbqueue.")]
    return {name for base in ours for name in vars(base) if not name.startswith("_")}


@pytest.fixture
def headings(site: Path) -> Counter[str]:
    """The ids of the headings of all pages of the reference."""
    texts = [path.read_text() for path in (site / "reference").glob("*.html")]
    return Counter(re.findall(r'<h\d id="(fdbqueue\.[^"]+)"', "".join(texts)))


def test_every_public_name_is_there_once(headings: Counter[str]) -> None:
    assert {name: headings[name] for name in public_names() if headings[name] != 1} == {}


def test_every_public_member_is_there(headings: Counter[str]) -> None:
    members = set(public_members())
    assert len(members) > 200
    assert members - headings.keys() == set()


def test_the_bindings_own_names_are_in_the_text() -> None:
    text = page("docs/reference/embedded.md")
    assert not [name for name in THE_BINDINGS_OWN if f"`{name}`" not in text]


def test_contracts_are_lists_of_definitions(site: Path) -> None:
    texts = {path.name: path.read_text() for path in (site / "reference").glob("*.html")}
    put = texts["task-queues.html"].partition('id="fdbqueue.TaskQueue.put"')[2].partition("<h3")[0]
    assert re.findall(r"<dt>(.*?)</dt>", put) == ["Reads", "Writes", "Conflicts", "Raises"]
    assert 'href="errors.html#fdbqueue.errors.QueueFull">QueueFull</a>' in put.replace(
        'class="autorefs autorefs-internal" ', ""
    )
    left = re.compile(r"<p>(?:[^<]*\s)?(?:Reads|Writes|Conflicts|Raises|Round trips): ")
    assert {name: found for name, text in texts.items() if (found := left.findall(text))} == {}


def test_a_limit_has_its_value(site: Path) -> None:
    text = (site / "reference" / "task-queues.html").read_text()
    assert "<code>limits.BATCH_ITEMS_MAX</code> (1,000)" in text
