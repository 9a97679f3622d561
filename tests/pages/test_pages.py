"""Every block of every page runs, or gives its reason; every picture has a text alternative."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, Block, PageError, blocks_of, pages, pictures_of, require_use
from tests.pages.running import Reader

PAGES = {name: (ROOT / name).read_text() for name in pages()}
RUNS = re.compile(r"^[ >]*(```+|~~~+) *(python|sh)\b", re.MULTILINE)
FOLLOWED_ELSEWHERE = {"docs/quickstart.md"}  # by tests/packaging, in an environment with the built package
RUN = [name for name, text in PAGES.items() if name not in FOLLOWED_ELSEWHERE and RUNS.search(text)]


@cache
def blocks() -> dict[str, list[Block]]:
    """Not parsed at import: each process of a run collects this file, and all pages take seconds."""
    return {name: blocks_of(name, text) for name, text in PAGES.items()}


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("name", RUN)
@pytest.mark.timeout(900)
def test_a_page_can_be_followed(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    compiled = tmp_path_factory.getbasetemp().parent / "compiled"  # one for all processes of pytest-xdist
    Reader(tmp_path, compiled).follow(blocks_of(name, PAGES[name]))


def test_a_page_with_a_block_to_run_is_followed() -> None:
    found = {
        name for name, blocks_ in blocks().items() if any(b.language in ("python", "sh") for b in blocks_)
    }
    assert found - FOLLOWED_ELSEWHERE == set(RUN)


def test_every_block_runs_or_gives_its_reason() -> None:
    refused = [str(error) for found in blocks().values() for block in found if (error := refusal(block))]
    assert not refused, "\n".join(refused)


def refusal(block: Block) -> PageError | None:
    try:
        require_use(block)
    except PageError as error:
        return error
    return None


def test_the_pieces_of_a_source_are_the_whole_file() -> None:
    """A page that shows a program shows all of it, in its order."""
    for found in blocks().values():
        for source in {block.options["source"] for block in found if "source" in block.options}:
            pieces = "".join(b.text for b in found if b.options.get("source") == source)
            assert without_blank_lines(pieces) == without_blank_lines((ROOT / source).read_text()), source


def without_blank_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_every_picture_has_a_text_alternative() -> None:
    pictures = [picture for name, text in PAGES.items() for picture in pictures_of(name, text)]
    bare = [f"{p.page}:{p.line}" for p in pictures if not p.alternative.strip()]
    assert pictures
    assert not bare


def test_the_list_for_language_models_leads_to_pages() -> None:
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "llms.txt").read_text())
    assert len(links) > 20
    assert [link for link in links if not (ROOT / "docs" / link).is_file()] == []


WORDS_OF_A_PAGE_MAX, WORDS_OF_THE_README_MAX, WORDS_MAX = 4_000, 500, 79_430


def test_the_pages_can_be_read_to_their_end() -> None:
    """Without the generated reference. A page beyond its bound says something twice, or is two pages."""
    words = {
        name: len(text.partition("<!-- From here on: python")[0].split())
        for name, text in PAGES.items()
        if not name.startswith("docs/reference/")
    }
    assert words["README.md"] <= WORDS_OF_THE_README_MAX
    assert [name for name, count in words.items() if count > WORDS_OF_A_PAGE_MAX] == []
    assert sum(words.values()) <= WORDS_MAX
