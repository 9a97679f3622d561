"""The crawler, against sites on 127.0.0.1."""

import pytest

import fdbqueue
from examples import crawler
from fdbqueue import Worker
from tests.examples.sites import PAGES, sites

LEASE_S = 2.0  # on a loaded machine, a worker renews later than after 0.2 s


def test_each_page_is_fetched_once_one_per_host(capsys: pytest.CaptureFixture[str]) -> None:
    """But for the page of a worker that died, and the one that a busy host has put off."""
    with sites(3) as there, fdbqueue.open("memory:") as db:
        start = there[0].url + "0"
        pages = crawler.open_pages(db, ttr=LEASE_S)
        crawler.discover(db, pages, [start])
        crawler.discover(db, pages, [start, start])
        dead = pages.take(db)
        assert dead is not None
        crawler.download(dead.data)
        Worker(db, "pages", crawler.fetch, threads=6).run(until_empty=True)
        crawler.show(db)
        twice = {(there[0].url, "/0")} | {(site.url, "/2") for site in there}
        for site in there:
            assert site.most_at_a_time == 1
            assert site.served.keys() == {f"/{number}" for number in range(PAGES)} | {"/gone"}
            assert {(site.url, path) for path, times in site.served.items() if times == 2} <= twice
            assert max(site.served.values()) <= 2
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 * (PAGES + 1)
    assert f"{start}: 200, 5 links" in lines
    assert f"{there[1].url}gone: 404, 0 links" in lines


def test_links_that_are_no_pages_are_left_out() -> None:
    text = (
        '<a href="mailto:a@b">1</a> <a id="x" href="b?x=1&amp;y=2#c">2</a> <a href="/' + "x" * 600 + '">3</a>'
    )
    assert list(crawler.links_of("http://h.example/a/", text)) == ["http://h.example/a/b?x=1&y=2"]
