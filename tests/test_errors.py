"""Each public error can be imported from fdbqueue, and has a row on its page."""

import inspect
import re
import subprocess
import sys

import pytest

import fdbqueue
from fdbqueue import FdbQueueError
from fdbqueue.core import errors
from fdbqueue.core.errors import LimitInUse, QueueFull
from fdbqueue.core.visible import counted
from tests.page import page

PUBLIC = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, FdbQueueError)
}
ROWS = re.findall(r"^\| `(\w+)` \|(.*?)\|(.*?)\|", page("docs/errors.md"), re.MULTILINE)


def test_each_error_can_be_imported_from_the_package() -> None:
    assert sorted(errors.__all__) == sorted(PUBLIC)
    assert {name: getattr(fdbqueue, name) for name in PUBLIC} == PUBLIC
    assert set(errors.__all__) <= set(fdbqueue.__all__)


def test_no_error_is_defined_elsewhere() -> None:
    everywhere, known = {FdbQueueError}, set[type]()
    while everywhere - known:
        known |= everywhere
        everywhere |= {below for error in known for below in error.__subclasses__()}
    assert {error.__name__ for error in known if error.__module__.startswith("fdbqueue.")} == set(PUBLIC)


def test_each_error_has_one_row_with_its_other_classes() -> None:
    also = {
        name: [base.__name__ for base in error.__bases__ if base is not FdbQueueError]
        for name, error in PUBLIC.items()
    }
    assert {name: re.findall(r"`(\w+)`", bases) for name, bases, _ in ROWS} == also
    assert len(ROWS) == len(PUBLIC)


def test_each_row_says_when_the_error_is_raised() -> None:
    assert [name for name, _, when in ROWS if not when.strip()] == []


def test_the_page_names_the_errors_that_do_not_heal() -> None:
    [told] = re.findall(r"^`error.heals` is false.*?\n\n", page("docs/errors.md"), re.MULTILINE | re.DOTALL)
    lasting = {name for name, error in PUBLIC.items() if not error.heals}
    assert set(re.findall(r"`([A-Z]\w+)`", told)) == lasting


def test_without_docstrings_an_error_names_class_and_data() -> None:
    """`python -OO` leaves them out, and with them the texts."""
    program = "import fdbqueue\ntry:\n    fdbqueue.open('odd')\nexcept ValueError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "UnknownUrl(url='odd')\n"


@pytest.mark.parametrize(("count", "told"), [(0, "0 tasks"), (1, "1 task"), (2_000, "2,000 tasks")])
def test_only_one_thing_has_the_singular(count: int, told: str) -> None:
    assert counted(count, "task") == told


def test_the_message_of_an_error_counts_its_nouns() -> None:
    full = QueueFull(name="q", current_size=1, capacity=2, wanted=2, cure="")
    assert "no room for 2 tasks: it holds 1 task, its capacity is 2" in str(full)
    assert "is in use by 3 tasks:" in str(LimitInUse(name="q", used=3))
