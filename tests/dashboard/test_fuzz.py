"""A fuzz of the HTTP face: no request gets a 500 or unescaped data, or changes a queue without a right to."""

from urllib.parse import quote

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dashboard.conftest import NAME, Served
from tests.dashboard.support import path_of

WORDS = [
    "",
    "a",
    "queues",
    "tasks",
    "dead",
    "plain",
    "pause",
    "kick",
    "delete-tasks",
    "login",
    "static",
    "..",
    "%2e%2e",
    "events",
]
TEXTS = st.text(max_size=20) | st.sampled_from(
    ["<script>a", "\x1b[31m", "0" * 32, "00", "-1", "x" * 600, "ready"]
)
FIELDS = st.sampled_from(
    [
        "state",
        "after",
        "error",
        "text",
        "count",
        "rate",
        "into",
        "data",
        "sure",
        "done",
        "csrf",
        "task",
        "all",
        "back",
    ]
)
FORMS = st.dictionaries(FIELDS, TEXTS, max_size=5)
METHODS = st.sampled_from(["GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"])
HEADERS = st.dictionaries(
    st.sampled_from(
        ["Host", "Origin", "Cookie", "Authorization", "Accept", "Content-Type", "Sec-Fetch-Site"]
    ),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
    | st.sampled_from(["localhost", "text/html", "same-origin", "fdbqueue_dashboard=1.2.3", "text/plain"]),
    max_size=3,
)


@st.composite
def paths(draw: st.DrawFn, served: Served) -> str:
    real = [path_of(NAME), path_of(NAME, "dead"), path_of(NAME, "tasks", served.ids["buried"])]
    parts = draw(st.lists(st.sampled_from(WORDS) | TEXTS, max_size=4))
    start = draw(st.sampled_from(["", "", *real]))
    return "/".join([start, *(quote(part.encode(errors="replace"), safe="%") for part in parts)]) or "/"


def test_no_request_fails_or_changes_a_queue(served: Served) -> None:
    before = _stored(served)

    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(METHODS, paths(served), FORMS, FORMS, HEADERS, st.booleans())
    def check(
        method: str,
        path: str,
        query: dict[str, str],
        form: dict[str, str],
        headers: dict[str, str],
        signs: bool,
    ) -> None:
        browser = served.reader if signs else served.writer
        if signs:  # a form of our own page: only the missing --write is in its way
            form = {**form, "csrf": browser.csrf(), "sure": "yes"}
        # A whole one: the client takes `//a` for a host. It removes dots, and `/../events` has no end.
        url = browser.client.base_url.copy_with(raw_path=path.encode())
        answer = browser.client.request(
            method,
            url.copy_with(path="/") if url.path == "/events" else url,
            params=_sound(query),
            data=_sound(form) or None,
            headers=headers,
            follow_redirects=False,
        )
        assert answer.status_code < 500, (answer.status_code, answer.text)
        assert "<script>a" not in answer.text
        assert "\x1b" not in answer.text
        assert answer.headers["x-frame-options"] == "DENY"
        browser.client.cookies.clear()

    check()
    assert _stored(served) == before


def _stored(served: Served) -> list[tuple[bytes, bytes]]:
    prefix = served.queue.contents.key()
    return [(bytes(row.key), bytes(row.value)) for row in served.db[prefix : prefix + b"\xff"]]


def _sound(fields: dict[str, str]) -> dict[str, str]:
    """Without half surrogate pairs, which no client can send."""
    return {name: text.encode(errors="replace").decode() for name, text in fields.items()}
