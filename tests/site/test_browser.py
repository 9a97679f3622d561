"""The site in a browser, from disk: search finds, nothing is logged, and nothing is asked of another host."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH"),
    pytest.mark.timeout(900),  # as in test_pages.py
]


class Visit(NamedTuple):
    """A page as a browser left it, its console, and the addresses that the page asked for."""

    page: str
    console: list[str]
    asked: list[str]


def visited(address: str, folder: Path) -> Visit:
    log = folder / "requests.json"
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        f"--user-data-dir={folder / 'profile'}",
        f"--log-net-log={log}",
        "--enable-logging=stderr",
        "--virtual-time-budget=20000",
        "--dump-dom",
        address,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240)
    console = re.findall(r":CONSOLE[^\]]*\] (.*)", done.stderr)
    return Visit(done.stdout, console, _asked_by_a_page(json.loads(log.read_text())))


def _asked_by_a_page(log: dict[str, list[dict[str, dict[str, str]]]]) -> list[str]:
    """The addresses of requests that a page began. Those of the browser itself have no origin."""
    requests = [event["params"] for event in log["events"] if "initiator" in event.get("params", {})]
    return [request["url"] for request in requests if request["initiator"] != "not an origin"]


def test_search_works_from_disk(site: Path, tmp_path: Path) -> None:
    visit = visited(f"{(site / 'index.html').as_uri()}?q=doorbell", tmp_path)
    assert re.search(r"\d+ matching documents", visit.page)
    assert re.search(r'<a href="file://[^"]*/concepts\.html\?h=doorbell', visit.page)
    assert visit.console == []
    assert visit.asked == []


def test_a_request_and_a_message_are_seen(tmp_path: Path) -> None:
    """Otherwise the test above could not fail."""
    page = tmp_path / "page.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>console.error("seen")</script>')
    visit = visited(page.as_uri(), tmp_path)
    assert visit.asked == ["http://example.invalid/x.png"]
    assert '"seen"' in visit.console[0]
