"""The pages of the site load nothing from elsewhere, and each picture has a text alternative."""

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.page import ROOT

pytestmark = [
    pytest.mark.timeout(900),  # the first test builds the site, and another process waits for it
    pytest.mark.in_turn(4, "site"),
]

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))
LOADS = {
    "script": ("src",),
    "img": ("src", "srcset"),
    "iframe": ("src",),
    "source": ("src", "srcset"),
    "link": ("href",),
    "object": ("data",),
    "embed": ("src",),
    "video": ("src", "poster"),
    "audio": ("src",),
}
# Addresses in the theme's scripts, and what each would need to be asked for.
ASKED_ONLY_FOR = {
    "unpkg.com/mermaid": 'class="mermaid"',
    "unpkg.com/resize-observer-polyfill": "a browser of before 2020",
    "api.github.com": 'data-md-component="source"',
    "gitlab.com": 'data-md-component="source"',
}


class Loads(HTMLParser):
    """Addresses that a page loads by itself, and pictures without a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses = list[str]()
        self.pictures_without_text = list[str]()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.addresses += [given[name] or "" for name in LOADS.get(tag, ()) if name in given]
        self.addresses += re.findall(r"url\(([^)]*)\)", given.get("style") or "")
        picture = "picture" in (given.get("class") or "").split()
        if (tag == "img" and not given.get("alt")) or (picture and not given.get("aria-label")):
            self.pictures_without_text.append(str(given))


@cache
def loads_of(site: Path) -> dict[str, Loads]:
    return {path.relative_to(site).as_posix(): Loads(path.read_text()) for path in site.rglob("*.html")}


def is_elsewhere(address: str) -> bool:
    return re.match(r"\s*['\"]?(?:[a-z]+:)?//", address, re.IGNORECASE) is not None


@pytest.mark.parametrize(
    "page",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<link rel="preconnect" href="//fonts.example.org">',
        '<p style="background: url(https://example.org/x.png)">',
    ],
)
def test_a_load_from_elsewhere_is_found(page: str) -> None:
    assert any(map(is_elsewhere, Loads(page).addresses))


def test_no_page_loads_from_elsewhere(site: Path) -> None:
    pages = loads_of(site)
    assert len(pages) > 25
    found = {(name, each) for name, loads in pages.items() for each in loads.addresses}
    assert not {pair for pair in found if is_elsewhere(pair[1])}
    assert found >= {("index.html", "assets/iframe-worker.js"), ("index.html", "assets/site.css")}


def test_no_style_loads_from_elsewhere(site: Path) -> None:
    styles = {path.name: path.read_text() for path in site.rglob("*.css")}
    loads = [
        each
        for text in styles.values()
        for each in re.findall(r"url\(([^)]*)\)|@import\s+([^;]+)", text)
        if is_elsewhere("".join(each))
    ]
    assert "site.css" in styles
    assert not loads


def test_no_script_has_a_reason_to_ask_elsewhere(site: Path) -> None:
    """The theme's scripts have addresses for features that no page uses."""
    scripts = "".join(path.read_text() for path in site.rglob("*.js") if path.name != "search_index.js")
    asked = set(re.findall(r"https?://((?:unpkg|api|gitlab|cdn|fonts)[\w./-]*)", scripts))
    assert asked
    assert not [each for each in asked if not each.startswith(tuple(ASKED_ONLY_FOR))]
    pages = "".join(path.read_text() for path in site.rglob("*.html"))
    assert not [mark for mark in ASKED_ONLY_FOR.values() if mark in pages]


def test_every_picture_on_a_page_has_a_text(site: Path) -> None:
    assert Loads("<img src=x.png>").pictures_without_text
    assert not [name for name, loads in loads_of(site).items() if loads.pictures_without_text]


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_has_a_title_and_a_description(path: Path) -> None:
    """The file is read on its own, too. All pictures have one look."""
    text = path.read_text()
    for tag in ("title", "desc"):
        (found,) = re.findall(rf'<{tag} id="{path.stem}-{tag}">([^<]+)</{tag}>', text)
        assert len(found) > 15
    assert f'aria-labelledby="{path.stem}-title {path.stem}-desc"' in text
    style = re.findall("<style>.*</style>", text, re.DOTALL)
    assert style == re.findall("<style>.*</style>", PICTURES[0].read_text(), re.DOTALL)


def test_every_picture_is_on_a_page() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert PICTURES
    assert not [path for path in PICTURES if f"(pictures/{path.name})" not in pages]


def test_no_page_shows_marks_of_markdown(site: Path) -> None:
    """A block of code, a list or a table that the site's Markdown did not see."""
    mark = re.compile(r"```|^[-*|] |\n[-*|] |\|---|\]\(", re.MULTILINE)
    texts = {path.name: path.read_text() for path in site.rglob("*.html")}
    shown = {
        (name, paragraph)
        for name, text in texts.items()
        for paragraph in re.findall(r"<p>([^<]*)", text.partition("<article")[2])
        if mark.search(paragraph)
    }
    assert not shown
