"""The pipeline: an image goes through its stages; a damaged one is buried, mended and kicked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import fdbqueue
from examples import images
from fdbqueue import Database, Worker


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    monkeypatch.chdir(tmp_path)
    with fdbqueue.open("memory:") as database:
        yield database


def ppm(width: int, height: int) -> bytes:
    pixels = bytes(x for y in range(height) for x in range(width) for _ in range(images.RGB))
    return b"P6\n%d %d\n255\n" % (width, height) + pixels


def run(db: Database) -> None:
    Worker(db, list(images.STAGES), images.work, threads=2).run(until_empty=True)


def test_an_image_is_shrunk_and_published(db: Database) -> None:
    Path("a.ppm").write_bytes(ppm(5, 4))
    images.open_stages(db)["check"].put_many(db, ["a.ppm", "a.ppm"])
    run(db)
    assert Path("out/a.ppm").read_bytes() == b"P6\n2 2\n255\n" + bytes([0, 0, 0, 2, 2, 2] * 2)
    assert bytes(db[images.PUBLISHED["a.ppm"]]) == b"out/a.ppm"
    assert [path.name for path in images.OUT.iterdir()] == ["a.ppm"]


def test_a_damaged_image_is_buried_mended_and_kicked(
    db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    stages = images.open_stages(db)
    Path("b.ppm").write_bytes(ppm(4, 4)[:-1])
    Path("c.ppm").write_bytes(b"GIF89a")
    stages["check"].put_many(db, ["b.ppm", "c.ppm"])
    run(db)
    images.show_buried(db)
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "check: b.ppm: 47 bytes of pixels, not 4 x 4 x 3",
        "check: c.ppm: not a PPM image of 8 bits",
    ]
    Path("b.ppm").write_bytes(ppm(4, 4))
    Path("c.ppm").write_bytes(ppm(2, 2))
    stages["check"].kick(db, 2)
    run(db)
    images.show_buried(db)
    assert capsys.readouterr().out == ""
    assert sorted(path.name for path in images.OUT.iterdir()) == ["b.ppm", "c.ppm"]


def test_a_publication_of_a_dead_worker_is_done_once(db: Database) -> None:
    """It dies between the publication and the ack; its lease ends."""
    publish = images.open_stages(db, ttr=0.2)["publish"]
    file = Path("d.ppm")
    images.store(images.half(file), images.Image(1, 1, b"abc"))
    publish.put(db, "d.ppm")
    assert publish.take(db) is not None
    images.publish(file)
    run(db)
    assert publish.statistics(db)["ends"]["acked"] == 1
    assert bytes(db[images.PUBLISHED["d.ppm"]]) == b"out/d.ppm"
