"""Pages of documentation, and the Python programs on them."""

from tests.pages.blocks import ROOT, blocks_of


def page(name: str) -> str:
    return (ROOT / name).read_text()


def examples_on(text: str) -> list[str]:
    return [block.text for block in blocks_of("", text) if block.language == "python"]
