"""The guard: names of hosts, the login, the origin of forms, and the headers of every answer."""

import re
from collections.abc import Iterator

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import fdbqueue
from fdbqueue import InvalidArgument, TaskQueue
from fdbqueue.core import limits
from fdbqueue.operate.dashboard import create_app
from fdbqueue.operate.dashboard.guard import Access, is_same_origin
from tests.dashboard.conftest import Served
from tests.dashboard.support import Browser, browsing
from tests.tasks.support import StillClock

TOKEN = "a token of enough letters"


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Browser, StillClock]]:
    clock = StillClock()
    with fdbqueue.open("memory:", runtime=clock) as db:
        TaskQueue.create(db, "q")
        with browsing(db, write=True, token=TOKEN, names=["Proxy.example"]) as browser:
            yield browser, clock


@pytest.fixture
def browser(guarded: tuple[Browser, StillClock]) -> Browser:
    guarded[0].client.cookies.clear()
    return guarded[0]


def sign_in(browser: Browser, token: str = TOKEN, status: int = 303) -> str:
    return str(browser.post("/login", status, token=token).headers.get("set-cookie", ""))


@pytest.mark.parametrize("host", ["localhost", "localhost:8462", "127.0.0.1", "[::1]:80", "127.9.9.9"])
def test_names_of_this_machine_are_answered(served: Served, host: str) -> None:
    served.reader.get("/healthz", Host=host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "10.1.2.3", "[", "127.0.0.1.nip.io"]
)
def test_other_names_are_refused_without_a_token(served: Served, host: str) -> None:
    assert "host name" in served.reader.get("/healthz", 403, Host=host)
    assert served.reader.client.post("/queues/plain/pause", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize(
    ("host", "status"), [("proxy.example:8462", 200), ("10.1.2.3", 200), ("evil.example", 403)]
)
def test_a_token_adds_addresses_and_given_names(browser: Browser, host: str, status: int) -> None:
    browser.get("/healthz", status, Host=host)


def test_nothing_is_shown_before_the_login(browser: Browser) -> None:
    for path in ("/", "/queues/q", "/queues/q/dead", "/queues/q/tasks/x", "/events", "/nothing"):
        assert "Sign in first" in browser.get(path, 401)
    assert browser.client.post("/queues/q/pause", data={"sure": "yes"}).status_code == 401
    assert 'type="password"' in browser.get("/", Accept="text/html")
    for path in ("/healthz", "/login", "/static/style.css"):
        assert browser.get(path)


def test_a_login_opens_all_pages_until_it_ends(guarded: tuple[Browser, StillClock], browser: Browser) -> None:
    cookie = sign_in(browser)
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    assert browser.act("/queues/q/pause").startswith("Paused")
    assert "Sign out" in browser.get("/")
    guarded[1].advance(limits.LOGIN_S)
    browser.get("/", 401)


def test_a_sign_out_ends_the_login(browser: Browser) -> None:
    sign_in(browser)
    browser.post("/logout")
    browser.get("/", 401)


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + "x", "ü" * 30])
def test_another_token_is_refused(browser: Browser, token: str, caplog: pytest.LogCaptureFixture) -> None:
    assert sign_in(browser, token, 403) == ""
    browser.get("/", 401)
    assert "a login from testclient has failed" in caplog.text
    if token:
        assert token not in caplog.text


@pytest.mark.parametrize("cookie", ["x", "..", "1.00.", f"9.{'0' * 64}", "1e9.00." + "0" * 64])
def test_an_invented_cookie_is_refused(browser: Browser, cookie: str) -> None:
    browser.get("/", 401, Cookie=f"fdbqueue_dashboard={cookie}")


def test_a_program_may_send_the_token(browser: Browser) -> None:
    browser.get("/", Authorization=f"Bearer {TOKEN}")
    browser.get("/", 401, Authorization="Bearer wrong")
    browser.get("/", 401, Authorization=f"Basic {TOKEN}")


def test_a_form_needs_the_text_of_its_own_login(browser: Browser) -> None:
    stranger = browser.csrf()
    sign_in(browser)
    browser.post("/queues/q/pause", 403, csrf=stranger)
    browser.post("/queues/q/pause", 200)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://localhost"}, 200),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://proxy.example"}, 200),
    ],
)
def test_forms_of_other_sites_are_refused(served: Served, headers: dict[str, str], status: int) -> None:
    browser = served.writer
    data = {"csrf": browser.csrf()}
    answer = browser.client.post("/queues/plain/pause", data=data, headers=headers)
    assert answer.status_code == status


def test_every_answer_has_the_headers(served: Served) -> None:
    client = served.reader.client
    for path in ("/", "/nothing", "/queues/nothing", "/static/live.js", "/static/nothing", "/healthz"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if path.startswith("/static") else "no-store")
    assert client.get("/", headers={"Host": "evil.example"}).headers["x-frame-options"] == "DENY"


def test_no_page_has_a_script_of_its_own(served: Served) -> None:
    for path in ("/", "/queues/plain", "/login"):
        page = served.writer.get(path)
        assert page.count("<script") == 1
        assert "style=" not in page
        assert " onclick" not in page


def test_a_short_token_is_refused() -> None:
    with fdbqueue.open("memory:") as db, pytest.raises(InvalidArgument, match="at least 16 characters"):
        create_app(db, token="short")


def test_a_cookie_belongs_to_one_process() -> None:
    first, second = (Access(secret, TOKEN) for secret in (b"1", b"2"))
    cookie = first.new_cookie(b"nonce", 100.0)
    assert first.is_signed_in(cookie, "", 101.0)
    assert not second.is_signed_in(cookie, "", 101.0)
    assert not first.is_signed_in(cookie, "", 99.0)
    assert TOKEN not in repr(first)


def test_a_browser_without_origin_headers_is_trusted_by_its_form() -> None:
    assert is_same_origin(None, None, "localhost")


def test_a_dashboard_works_below_a_path() -> None:
    with fdbqueue.open("memory:", runtime=StillClock()) as db:
        TaskQueue.create(db, "q")
        outer = Starlette(routes=[Mount("/ops", create_app(db, write=True, token=TOKEN))])
        with TestClient(outer, base_url="http://localhost") as client:
            answer = client.get("/ops/", headers={"Accept": "text/html"})
            assert answer.url.path == "/ops/login"
            csrf = answer.text.partition('name="csrf" value="')[2].partition('"')[0]
            answer = client.post("/ops/login", data={"csrf": csrf, "token": TOKEN})
            assert answer.url.path == "/ops/"
            page = client.get("/ops/queues/q").text
            linked = re.findall('(?:href|src|action|data-events)="(/[^"]*)"', page)
            assert linked
            assert {path for path in linked if not path.startswith("/ops/")} == set()
            assert client.get("/ops/static/live.js").status_code == 200
