"""mypy --strict in a program of a user: each wrong call is an error, no right one is."""

import re
from pathlib import Path

from tests.typed.user import mypy_finds

TYPED = Path(__file__).parent / "typed"
FILES = ("right_calls", "awaited_calls", "wrong_calls")
WRONG = (TYPED / "wrong_calls.py").read_text().splitlines()
FIRST = WRONG.index("    # Each line below is wrong.") + 1
END = WRONG.index("    # Each line above is wrong.")


def test_mypy_finds_each_wrong_call_and_nothing_else() -> None:
    found = mypy_finds([TYPED / f"{name}.py" for name in FILES], TYPED)
    places = [re.match(r"(\w+)\.py:(\d+): error: ", line) for line in found]
    unexpected, refused = [], set()
    for line, place in zip(found, places, strict=True):
        if place and place[1] == "wrong_calls" and FIRST < int(place[2]) <= END:
            refused.add(int(place[2]))
        elif place:
            unexpected.append(line)
    assert unexpected == []
    assert [WRONG[number - 1] for number in range(FIRST + 1, END + 1) if number not in refused] == []
