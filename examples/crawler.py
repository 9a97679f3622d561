"""A polite crawler: each page once, and one request at a time to each host.

    python examples/crawler.py http://127.0.0.1:8000/      # where to begin; without a URL, what was found
    fdbqueue work pages examples.crawler:fetch             # workers, here or on any machine

A page is a task, and its host is the key of the task: a micro-queue hands out one task of a key at a time.
"""

import os
import re
import sys
from collections.abc import Iterator
from email.message import Message
from html import unescape
from urllib.error import HTTPError
from urllib.parse import urldefrag, urljoin, urlsplit
from urllib.request import Request, urlopen

import fdbqueue
from fdbqueue import Database, Done, HeldTask, Snooze, TaskQueue, Transaction

SEEN = fdbqueue.Subspace(("crawler", "seen"))
FOUND = fdbqueue.Subspace(("crawler", "found"))
AGENT = "example-crawler (+https://crawler.example)"
LINKS_MAX, PAGE_BYTES_MAX, URL_CHARACTERS_MAX = 200, 1_000_000, 500
TIMEOUT_S, PAUSE_S = 10, 60
BUSY = (429, 503)


def open_pages(db: Database, ttr: float = 60) -> TaskQueue:
    """`ttr`: seconds after which the page of a dead worker goes to another."""
    return TaskQueue.create(db, "pages", "utubettl", ttr=ttr, if_not_exists=True)


@fdbqueue.transactional
def discover(tr: Transaction, pages: TaskQueue, urls: list[str]) -> None:
    """Put the pages that were not seen before. All reads are sent before the first answer is awaited."""
    for url, seen in [(url, tr[SEEN[url]]) for url in dict.fromkeys(urls)]:
        if not seen.present():
            tr[SEEN[url]] = b""
            pages.put(tr, url, key=urlsplit(url).netloc)


def fetch(task: HeldTask) -> None:
    """The handler: get a page; then store it, put its links and ack it in one transaction.

    An error of the network fails the attempt: the worker tries again later, and buries the page in the end.
    """
    url = task.data
    status, text = download(url)
    links = list(links_of(url, text))[:LINKS_MAX]
    pages = TaskQueue.open(task.database, task.queue)

    def finish(tr: Transaction) -> None:
        tr[FOUND[url]] = f"{status}, {len(links)} links".encode()
        discover(tr, pages, links)

    raise Done(finish)


def download(url: str) -> tuple[int, str]:
    """Return the status and the text of a page. A busy host puts the page off without a failure."""
    try:
        with urlopen(Request(url, headers={"User-Agent": AGENT}), timeout=TIMEOUT_S) as reply:
            return reply.status, reply.read(PAGE_BYTES_MAX).decode(errors="replace")
    except HTTPError as error:
        if error.code in BUSY:
            raise Snooze(pause_s(error.headers), f"{url}: status {error.code}") from error
        if error.code >= 500:
            raise
        return error.code, ""  # such as 404: the answer of this page


def pause_s(headers: Message) -> int:
    """Return the pause that the host asks for."""
    asked = headers.get("Retry-After", "")
    return int(asked) if asked.isdecimal() else PAUSE_S


def links_of(url: str, text: str) -> Iterator[str]:
    for link in re.findall(r'<a\s[^>]*href="([^"]*)"', text):
        whole, _ = urldefrag(urljoin(url, unescape(link)))
        if urlsplit(whole).scheme in ("http", "https") and len(whole) <= URL_CHARACTERS_MAX:
            yield whole


def show(db: Database) -> None:
    for key, value in db.get_range_startswith(FOUND.key()):
        (url,) = FOUND.unpack(bytes(key))
        print(f"{url}: {bytes(value).decode()}")


def main() -> None:
    with fdbqueue.open() as db:
        if sys.argv[1:]:
            discover(db, open_pages(db), sys.argv[1:])
        else:
            show(db)


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
