"""Every block of every page runs, or gives its reason; every picture has a text alternative."""

from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, Block, PageError, blocks_of, pages, pictures_of, require_use
from tests.pages.running import Reader

PAGES = {name: (ROOT / name).read_text() for name in pages()}
BLOCKS = {name: blocks_of(name, text) for name, text in PAGES.items()}
FOLLOWED_ELSEWHERE = {"docs/quickstart.md"}  # by tests/packaging, in an environment with the built package
RUN = [
    name
    for name, blocks in BLOCKS.items()
    if name not in FOLLOWED_ELSEWHERE and any(b.language in ("python", "sh") for b in blocks)
]


@pytest.mark.parametrize("name", RUN)
@pytest.mark.timeout(900)
def test_a_page_can_be_followed(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    compiled = tmp_path_factory.getbasetemp().parent / "compiled"  # one for all processes of pytest-xdist
    Reader(tmp_path, compiled).follow(BLOCKS[name])


def test_every_block_runs_or_gives_its_reason() -> None:
    refused = [str(error) for blocks in BLOCKS.values() for block in blocks if (error := refusal(block))]
    assert not refused, "\n".join(refused)


def refusal(block: Block) -> PageError | None:
    try:
        require_use(block)
    except PageError as error:
        return error
    return None


def test_the_pieces_of_a_source_are_the_whole_file() -> None:
    """A page that shows a program shows all of it, in its order."""
    for blocks in BLOCKS.values():
        for source in {block.options["source"] for block in blocks if "source" in block.options}:
            pieces = "".join(b.text for b in blocks if b.options.get("source") == source)
            assert without_blank_lines(pieces) == without_blank_lines((ROOT / source).read_text()), source


def without_blank_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_every_picture_has_a_text_alternative() -> None:
    pictures = [picture for name, text in PAGES.items() for picture in pictures_of(name, text)]
    bare = [f"{p.page}:{p.line}" for p in pictures if not p.alternative.strip()]
    assert pictures
    assert not bare
