"""A dashboard in a real Chromium, which tests drive. A tab remembers each complaint of its pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from fdbqueue import Database
from fdbqueue.operate.dashboard import create_app
from fdbqueue.operate.dashboard.app import Server, listener, url_of

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    pytest.skip("Chromium is not installed: apt-get install chromium", allow_module_level=True)

from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright  # noqa: E402

PATIENCE_MS = 120_000


@contextmanager
def served(database: Database, **options: Any) -> Iterator[str]:
    """A dashboard with actions at a free port of this machine; `options` are those of create_app."""
    listening = listener("127.0.0.1", 0)
    server = Server(create_app(database, write=True, **options))
    thread = Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield url_of(listening)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def chromium() -> Iterator[Browser]:
    # Root may not use the sandbox of Chromium, and containers have a small /dev/shm.
    arguments = ["--disable-dev-shm-usage", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments, timeout=PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One page of a browser; `complaints` are its console lines, its errors, and requests to other hosts."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        context.set_default_timeout(PATIENCE_MS)
        self.url = url
        self.context = context
        self.page: Page = context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda line: self.complaints.append(line.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self._requested(request.url))

    def open(self, path: str = "/") -> Page:
        self.page.goto(self.url + path)
        return self.page

    def focused(self) -> str:
        """The text of the element with the focus."""
        return str(self.page.evaluate("document.activeElement.textContent.trim()"))

    def press_until(self, text: str, key: str = "Tab", most: int = 40) -> None:
        """Press the key until the element with that text has the focus."""
        for _ in range(most):
            self.page.keyboard.press(key)
            if self.focused() == text:
                return
        raise AssertionError(f"{most} times {key} does not lead to {text!r}")

    def _requested(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.url).netloc:
            self.complaints.append(f"request to {url}")


@contextmanager
def tab(browser: Browser, url: str, **options: Any) -> Iterator[Tab]:
    """A tab of a new profile. Raises AssertionError at its end if its pages had a complaint."""
    context = browser.new_context(**options)
    try:
        opened = Tab(context, url)
        yield opened
        assert opened.complaints == []
    finally:
        context.close()
