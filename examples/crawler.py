"""A polite crawler: many workers, every page once, and never two requests at a time to one host.

    python examples/crawler.py

It crawls three small sites that it serves itself. A page is a task, its host the key: a micro-queue hands
out one task of a key at a time. The links of a page are put in the transaction that acks it, unless they
were seen before; a worker that dies leaves its page to another.
"""

import re
import threading
import time
from collections import Counter
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urljoin, urlsplit
from urllib.request import urlopen

import fdbqueue
from fdbqueue import Database, Task, TaskQueue

SITES, PAGES, WORKERS = 3, 12, 8
SEEN = b"seen/"


class Site(ThreadingHTTPServer):
    """Pages that link to each other and to the neighbours; counts how many requests it has at a time."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Page)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.neighbours: list[str] = []
        self.served: Counter[str] = Counter()
        self.at_a_time = self.most_at_a_time = 0
        self.lock = threading.Lock()


class Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site = self.server
        with site.lock:
            site.served[self.path] += 1
            site.at_a_time += 1
            site.most_at_a_time = max(site.most_at_a_time, site.at_a_time)
        time.sleep(0.01)
        number = int(self.path[1:] or 0)
        links = [*site.neighbours, f"/{(2 * number + 1) % PAGES}", f"/{(2 * number + 2) % PAGES}"]
        body = "".join(f'<a href="{link}">next</a>' for link in links).encode()
        with site.lock:
            site.at_a_time -= 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@fdbqueue.transactional
def discover(tr: Any, pages: TaskQueue, url: str) -> None:
    """Put a page, unless it has been."""
    if not tr[SEEN + url.encode()].present():
        tr[SEEN + url.encode()] = b""
        pages.put(tr, url, key=urlsplit(url).netloc)


@fdbqueue.transactional
def finish(tr: Any, pages: TaskQueue, task: Task, links: list[str]) -> None:
    """The page is acked and its links are put: both, or neither."""
    for link in links:
        discover(tr, pages, link)
    pages.ack(tr, task)


def work(db: Database, pages: TaskQueue) -> None:
    while pages.statistics(db)["tasks"]["total"]:
        task = pages.take(db, timeout=0.2)
        if task is not None:
            with urlopen(task.data, timeout=10) as reply:
                found = re.findall(r'href="([^"]*)"', reply.read().decode())
            finish(db, pages, task, [urljoin(task.data, link) for link in found])


def crawl(db: Database, start: str) -> None:
    pages = TaskQueue.create(db, "pages", "utube")
    discover(db, pages, start)
    workers = [threading.Thread(target=work, args=(db, pages)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def main() -> None:
    with ExitStack() as stack:
        sites = [stack.enter_context(Site()) for _ in range(SITES)]
        for site in sites:
            site.neighbours = [other.url + "0" for other in sites if other is not site]
            threading.Thread(target=site.serve_forever, daemon=True).start()
            stack.callback(site.shutdown)
        with fdbqueue.open("memory:") as db:
            crawl(db, sites[0].url + "0")
        for site in sites:
            print(f"{len(site.served)} pages, each {set(site.served.values())} times,", end=" ")
            print(f"at most {site.most_at_a_time} at a time")


if __name__ == "__main__":
    main()
