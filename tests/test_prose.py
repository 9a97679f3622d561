"""English is a test: marked sentences (prose.py) are rare, and the names of tests are short."""

from functools import cache
from pathlib import Path

import pytest

import fdbqueue
from tests.prose import Sentence, names_of_tests, sentences_of

ROOT = Path(fdbqueue.__file__).parent.parent
READ = (
    "fdbqueue",
    "docs",
    "README.md",
    "SECURITY.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "tests",
    "benchmarks",
    "loadtest",
    "examples",
    "docker",
)
MARKED_SHARE_MAX = 0.03
"""Of the sentences of one file. One sentence may be marked in a short file."""
MARKED_SHARE_OF_ALL_MAX = 0.02
"""Of the sentences of fdbqueue, docs and README.md together."""
TEST_NAME_MAX = 60


@cache
def marked_in() -> dict[str, tuple[list[str], int]]:
    """For each file, its marked sentences and the number of all."""
    found = {}
    for path in _files():
        name = path.relative_to(ROOT).as_posix()
        sentences = sentences_of(path, messages=not name.startswith("tests/"))
        marked = [f"{name}:{sentence.line}: {sentence.text}" for sentence in sentences if sentence.marked]
        found[name] = (marked, len(sentences))
    return found


def _files() -> list[Path]:
    paths = [ROOT / name for name in READ]
    inside = [path for folder in paths for path in sorted(folder.rglob("*"))]
    ours = (path for path in [*paths, *inside] if "node_modules" not in path.parts)
    return [path for path in ours if path.suffix in (".py", ".md")]


def too_many(marked: list[str], total: int) -> bool:
    return len(marked) > max(1, MARKED_SHARE_MAX * total)


def long_names() -> dict[str, list[str]]:
    return {
        path.relative_to(ROOT).as_posix(): [
            name for name in names_of_tests(path) if len(name) > TEST_NAME_MAX
        ]
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }


@pytest.mark.parametrize(
    "text",
    [
        "Whoever looks at the line asks for more items.",
        "The request of somebody that lives stays.",
        "Raises for what is no token.",
        "Take so many at a time.",
        "Put the own request first.",
        "Reads nothing. Nor do puts.",
    ],
)
def test_a_sentence_without_a_clear_subject_is_marked(text):
    assert Sentence(1, text).marked


@pytest.mark.parametrize(
    "text", ["What is a share?", "Each request takes its own share.", "As long as it lives."]
)
def test_a_plain_sentence_is_not_marked(text):
    assert not Sentence(1, text).marked


def test_few_sentences_of_a_file_are_marked():
    """The message has each marked sentence, with its file and line."""
    refused = [
        sentence
        for name, (marked, total) in marked_in().items()
        if too_many(marked, total)
        for sentence in marked
    ]
    assert not refused, "\n".join(refused)


def test_few_sentences_of_the_package_and_its_pages_are_marked():
    """Short files may have one marked sentence each, but not all of them."""
    done = {
        name: found
        for name, found in marked_in().items()
        if name.startswith(("fdbqueue/", "docs/", "README"))
    }
    marked = [sentence for sentences, _ in done.values() for sentence in sentences]
    total = sum(number for _, number in done.values())
    assert len(marked) <= MARKED_SHARE_OF_ALL_MAX * total, "\n".join(marked)


def test_names_of_tests_are_short():
    refused = [name for path, names in long_names().items() for name in names]
    assert not refused
