"""Additions of the site: pages for files outside of docs/ that a page links to, and pictures in their pages.

`fdbqueue` is read in docs/ and on the site. So a page links to `../CHANGELOG.md` or `../examples/crawler.py`,
and the site has a page for each such file.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
README = "README.md"
HOME = "index.md"
_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")
_FENCE = re.compile(r"^( *`{3,}\w+) +(.+)$", re.MULTILINE)
_FILE = re.compile(r'\b(?:file|source)="([^"]+)"')
_PICTURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<src>[^"]*\.svg)"\s*/?>')
_LANGUAGES = {".py": "python", ".sh": "sh", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".sql": "sql"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add a page for each file outside of docs/ that a page links to, and for those of the project itself."""
    wanted = {name for name in ALWAYS if (ROOT / name).is_file()}
    for file in list(files.documentation_pages()):
        wanted |= _outside(file.src_uri, file.content_string)
    seen = set[str]()
    while new := wanted - seen:
        seen |= new
        for path in sorted(new):
            text = _as_page(path)
            files.append(File.generated(config, _page_of(path), content=text))
            if path.endswith(".md"):
                wanted |= _outside(_page_of(path), text)
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links to files outside of docs/ at their pages. Leave out the words in fences that tests read."""
    linked = _LINK.sub(lambda match: _link_on_site(page.file.src_uri, match[1]), markdown)
    return _FENCE.sub(_plain_fence, linked)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Make each SVG picture part of its page, so that it follows the colours that the reader has chosen."""
    folder = Path(config.docs_dir, page.file.src_uri).parent
    return _PICTURE.sub(lambda match: _inline(folder / match["src"], match["alt"]), html)


def _plain_fence(match: re.Match[str]) -> str:
    """The beginning of a block of code, with the name of its file as the title."""
    file = _FILE.search(match[2])
    return f'{match[1]} title="{file[1]}"' if file else match[1]


def _inline(picture: Path, alt: str) -> str:
    svg = picture.read_text(encoding="utf8").partition("<svg")[2]
    return f'<svg role="img" aria-label="{alt}"{svg.rstrip()}'


def _outside(page: str, text: str) -> set[str]:
    """The files outside of docs/ to which the page links, as paths below the root of the project."""
    targets = (_from_root(page, link) for link in _LINK.findall(text))
    return {path for path in targets if path and path != README and (ROOT / path).is_file()}


def _from_root(page: str, link: str) -> str | None:
    """The path of a link's target below the root; None if the target is below docs/, or above the root."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return None if path.startswith(("docs/", "../")) else path


def _link_on_site(page: str, link: str) -> str:
    path = _from_root(page, link)
    if path is None or not (ROOT / path).is_file():
        return link
    return posixpath.relpath(HOME if path == README else _page_of(path), posixpath.dirname(page) or ".")


def _page_of(path: str) -> str:
    """The page of a file: `changelog.md` for CHANGELOG.md, `files/examples/crawler.py.md` for a program."""
    if "/" not in path:
        return f"project/{path.removesuffix('.md').lower()}.md"
    return f"files/{path}" if path.endswith(".md") else f"files/{path}.md"


def _as_page(path: str) -> str:
    """The Markdown of a file: as it is, or as one block of code. Its links are those of a page in docs/."""
    text = (ROOT / path).read_text(encoding="utf8")
    if not path.endswith(".md"):
        language = _LANGUAGES.get(Path(path).suffix, "text")
        return f"# {path}\n\n````{language}\n{text.rstrip()}\n````\n"
    folder = posixpath.dirname(_page_of(path))
    return _LINK.sub(lambda match: _moved(path, match[1], folder), text)


def _moved(path: str, link: str, folder: str) -> str:
    """The link of a file at `path`, as a page in `folder` of docs/ would write it."""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return posixpath.relpath(target, posixpath.join("docs", folder))
