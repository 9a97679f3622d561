"""Small sites on 127.0.0.1 that link to each other, and count their requests."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PAGES = 6
SLOW_S = 0.005


class Site(ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Page)
        self.url = f"http://127.0.0.1:{self.server_port}/"
        self.neighbours: list[str] = []
        self.served: Counter[str] = Counter()
        self.at_a_time = self.most_at_a_time = 0
        self.lock = threading.Lock()

    def begin(self, path: str) -> int:
        """Count a request, and return its status: the first of page 2 meets a busy host."""
        with self.lock:
            self.served[path] += 1
            self.at_a_time += 1
            self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
            return 429 if path == "/2" and self.served[path] == 1 else 404 if path == "/gone" else 200


class _Page(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        site = self.server
        status = site.begin(self.path)
        time.sleep(SLOW_S)  # a second request at that time would be counted
        number = int(self.path[1:]) if self.path[1:].isdecimal() else 0
        links = [
            *site.neighbours,
            f"/{(2 * number + 1) % PAGES}#top",
            f"/{(2 * number + 2) % PAGES}",
            "/gone",
        ]
        body = "".join(f'<a class="x" href="{link}">next</a>' for link in links).encode()
        with site.lock:
            site.at_a_time -= 1
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def sites(count: int) -> Iterator[list[Site]]:
    with ExitStack() as stack:
        made = [stack.enter_context(Site()) for _ in range(count)]
        for site in made:
            site.neighbours = [other.url + "0" for other in made if other is not site]
            threading.Thread(target=site.serve_forever, args=(0.01,), daemon=True).start()
            stack.callback(site.shutdown)
        yield made
