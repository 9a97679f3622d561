"""Pages made here, with a broken promise each: the message has the page and the line."""

from pathlib import Path

import pytest

from tests.pages.blocks import PageError, blocks_of, pictures_of, require_use
from tests.pages.running import Reader

COMPILED = "compiled"


def follow(page: str, place: Path) -> None:
    Reader(place, place / COMPILED).follow(blocks_of("page.md", page))


@pytest.mark.parametrize(
    ("fence", "reason"),
    [
        ("```\nx\n```", "nothing runs ''"),
        ("```console\nx\n```", "nothing runs 'console'"),
        ("```sh norun\nx\n```", "norun without a reason"),
        ("```sh nrun='a cluster'\nx\n```", "unknown options: .'nrun'."),
        ("    fdbqueue size notes", "an indented block"),
    ],
)
def test_a_block_without_run_or_reason_is_refused(fence: str, reason: str) -> None:
    (block,) = blocks_of("page.md", f"# Title\n\n{fence}\n")
    with pytest.raises(PageError, match=f"^page.md:3: {reason}"):
        require_use(block)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("```sh\nfalse | true\n```", "1: failed"),
        ("```sh\necho two\n```\n\nIt prints:\n\n```text\none\n```", "1: (?s:.*)one(?s:.*)two"),
        ("```python\nprint(1)  # 2\n```", "1: "),
        ("```python\nprint(1)\n```", "1: "),
        ("\n```python\n\n1 / 0\n```", "2: failed(?s:.*)page.md., line 4"),
        ("```python continues\nprint(1)\n```", "1: continues nothing"),
        ("```python\na = 1\n```\n```python\nprint(a)  # 1\n```", "4: failed(?s:.*)NameError"),
        ("```python\nimport atexit, os\natexit.register(os._exit, 3)\n```", "1: a program .* has not ended"),
    ],
)
def test_a_broken_promise_is_found(page: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(PageError, match=f"^page.md:{reason}"):
        follow(page, tmp_path)


def test_blocks_share_a_directory_and_a_terminal(tmp_path: Path) -> None:
    page = """
```python file="greeting.py"
print("hello")
```

```sh
export NAME=ann
python greeting.py > heard
```

```python
import os
from pathlib import Path

print(Path("heard").read_text().strip())  # hello
word = os.getenv("NAME", "not in the terminal")
```

```sh
echo "$NAME $((1 + 1))"
sleep 100 &
```

```text
a... 2
```

```python continues
print(word)  # not in the terminal
```
"""
    follow(page, tmp_path)


def test_a_picture_without_words_is_found() -> None:
    page = '![](a.png)\n\n![queue](b.png) and <img src="c.png"> <img src="d.png" alt="line">\n'
    assert [picture.alternative for picture in pictures_of("page.md", page)] == ["", "queue", "", "line"]
