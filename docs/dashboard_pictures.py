"""Write the pictures of docs/dashboard.md: a night of a shop, made up from a seed, in a browser.

python docs/dashboard_pictures.py [DIRECTORY]      `make pictures`; it needs Chromium
"""

import os
import random
import shutil
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

import fdbqueue
from fdbqueue.core.root_keys import DEFAULT_ROOT, RootKeys
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.status import Appearance, Presence, Running, Tally
from fdbqueue.operate.dashboard import app as serving
from fdbqueue.operate.dashboard import create_app

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
PICTURES = Path(__file__).parent / "pictures"
NIGHT = datetime(2026, 1, 31, 3, 14, 7, tzinfo=UTC).timestamp()
COLOURS = 200
HOUR_S, LOOK_S, LOOKS = 3600.0, 2.0, 75
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/webhooks.py", line 31, in deliver
    answer = client.post(task.data["url"], json=task.data["event"])
  File "/srv/shop/client.py", line 12, in post
    raise ConnectTimeout(f"{url} has not answered in 10 s")
shop.client.ConnectTimeout: https://hooks.example.net/orders has not answered in 10 s
"""


class Clock(RealRuntime):
    """A clock that stands until it is moved, and bytes from a seed."""

    def __init__(self, start: float) -> None:
        self._now = start
        self._bytes = random.Random(1)

    def now(self) -> float:
        return self._now

    monotonic = now

    def random_bytes(self, count: int) -> bytes:
        return self._bytes.randbytes(count)

    def advance(self, seconds: float) -> None:
        self._now += seconds


class Shop:
    """The queues of a shop: most are fine, one has no worker, one has dead letters, and one is paused."""

    def __init__(self, db: fdbqueue.Database, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._dice = random.Random(2)
        make = fdbqueue.TaskQueue.create
        self._queues = {
            "emails": make(db, "emails", "fifottl", ttr=60, retain_s=86_400),
            "images": make(db, "images", "fifo"),
            "imports": make(db, "imports", "fifo"),
            "invoices": make(db, "invoices", "utube"),
            "reports": make(db, "reports", "fifottl"),
            "webhooks": make(db, "webhooks", "fifottl", ttr=30),
        }
        fdbqueue.Queue.named(db, "audit").enqueue(db, {"login": "ada"})

    def live(self, look: int) -> None:
        """Two seconds of the night."""
        wave = 1 + 0.5 * ((look % 30) / 30) + (0.8 if 40 < look < 52 else 0)
        self._work("emails", round(24 * wave * self._dice.uniform(0.8, 1.2)), look)
        self._work("invoices", self._dice.randrange(4), look)
        self._work("webhooks", self._dice.randrange(1, 6), look)
        self._clock.advance(LOOK_S)

    def _work(self, name: str, puts: int, look: int) -> None:
        queue, db = self._queues[name], self._db
        options: dict[str, Any] = (
            {"key": self._dice.choice(("ACME", "globex", "initech"))} if name == "invoices" else {}
        )
        numbers = [self._dice.randrange(10_000) for _ in range(puts)]
        if puts:
            queue.put_many(db, [data_of(name, number) for number in numbers], **options)
        lag = 0.6 if 40 < look < 50 else 1.0
        for task in queue.take_many(db, max(1, round(30 * lag) if name == "emails" else 4)):
            queue.ack(db, task)

    def begin(self) -> None:
        """Hours before: what stands since then."""
        db, queues = self._db, self._queues
        queues["imports"].put_many(db, [{"file": f"catalogue-{number}.csv"} for number in range(7)])
        queues["imports"].pause(db)
        self._clock.advance(2 * HOUR_S)
        self._fail("ConnectTimeout", "https://hooks.example.net/orders has not answered in 10 s", 17)
        self._fail("HTTPError", "https://partner.example.org/in: 410 Gone", 5)
        self._fail("KeyError", "'url'", 1)
        self._clock.advance(0.4 * HOUR_S)
        queues["images"].put_many(db, [{"upload": number, "sizes": [200, 800]} for number in range(340)])
        queues["reports"].put_many(db, [{"shop": number} for number in range(120)], delay=4 * HOUR_S)

    def _fail(self, error: str, message: str, count: int) -> None:
        queue, db = self._queues["webhooks"], self._db
        events = [
            {"url": "https://hooks.example.net/orders", "event": {"order": 4_000 + n}} for n in range(count)
        ]
        queue.put_many(db, events)
        for attempt in (1, 2, 3):
            self._clock.advance(75)
            failure = fdbqueue.Failure(error, message, TRACEBACK, "worker-3:4711")
            for task in queue.take_many(db, count):
                if attempt < 3:
                    queue.release(db, task, failure=failure)
                else:
                    queue.bury(db, task, failure=failure)

    def end(self) -> None:
        """What runs while the pictures are made, and the workers."""
        db, queue = self._db, self._queues["emails"]
        queue.put_many(db, [data_of("emails", number) for number in range(9)])
        tasks = queue.take_many(db, 5)
        tasks_of_one = [Running(task.id, "emails", 14.0, fraction=0.4) for task in tasks[:1]]
        running = (*tasks_of_one, *(Running(task.id, "emails", 1.4) for task in tasks[1:3]))
        for number, queues, at_work in (
            (1, ("emails",), running),
            (2, ("emails", "webhooks"), ()),
            (3, ("invoices", "webhooks"), ()),
        ):
            self._appear(number, queues, at_work)

    def _appear(self, number: int, queues: tuple[str, ...], at_work: tuple[Running, ...]) -> None:
        now = self._clock.now()
        tally = Tally(done=40_312 * number, failed=17 * number, buried=23 if number > 1 else 0)
        told = Presence(
            f"worker-{number}", 4711, queues, "shop.handlers:run", 8, now - 5 * HOUR_S, tally, at_work, now
        )
        session = fdbqueue.Session(self._db, ttr=86_400.0)
        Appearance(self._db, RootKeys(DEFAULT_ROOT), lambda: session, lambda: told).tick()


def data_of(name: str, number: int) -> Mapping[str, object]:
    if name == "emails":
        return {"to": f"customer-{number}@example.com", "template": "receipt", "order": number}
    return {"order": number}


@contextmanager
def served(db: fdbqueue.Database) -> Iterator[str]:
    listening = serving.listener("127.0.0.1", 0)
    server = serving.Server(create_app(db, write=True, place="fdb:/etc/foundationdb/fdb.cluster"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield serving.url_of(listening)
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


class Picture(NamedTuple):
    name: str
    path: str
    theme: Literal["light", "dark"]
    width: int
    height: int


def shoot(browser: Browser, url: str, picture: Picture, into: Path) -> None:
    """Write the picture once its page is live."""
    size: ViewportSize = {"width": picture.width, "height": picture.height}
    context = browser.new_context(viewport=size, color_scheme=picture.theme)
    with closing(context), closing(context.new_page()) as page:
        page.goto(url + picture.path)
        if page.locator("[data-events]").count():
            page.locator("#pulse[data-state=live]").wait_for()
            page.evaluate("document.getElementById('pulse').textContent = 'Live · 03:14:07'")
        shot = Image.open(BytesIO(page.screenshot()))
        shot.quantize(COLOURS).save(into / f"dashboard-{picture.name}.png", optimize=True)


def main(into: Path) -> None:
    into.mkdir(exist_ok=True)
    clock = Clock(NIGHT - 3.5 * HOUR_S)
    with fdbqueue.open("memory:", runtime=clock, session_ttr_s=86_400.0) as db, ExitStack() as rest:
        shop = Shop(db, clock)
        shop.begin()
        clock.advance(NIGHT - LOOKS * LOOK_S - clock.now())
        url = rest.enter_context(served(db))
        for look in range(LOOKS):
            shop.live(look)
            if look == LOOKS - 8:
                shop.end()
            urllib.request.urlopen(url).read()
        webhooks = fdbqueue.DeadLetters.open(db, "webhooks")
        letter = webhooks.tasks(db, 1)[0].task.id
        task, dead = f"/queues/webhooks/tasks/{letter}", "/queues/webhooks/dead"
        pictures = (
            Picture("light", "/", "light", 1200, 900),
            Picture("dark", "/", "dark", 1200, 900),
            Picture("queue", "/queues/emails?state=taken", "dark", 1200, 1000),
            Picture("task", task, "light", 1200, 800),
            Picture("dead", dead, "dark", 1200, 720),
            Picture("phone", "/", "dark", 390, 800),
        )
        with sync_playwright() as driver:
            arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
            with closing(driver.chromium.launch(executable_path=CHROMIUM, args=arguments)) as browser:
                for picture in pictures:
                    shoot(browser, url, picture, into)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURES)
