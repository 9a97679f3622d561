"""The mailer: rounds over its tenants, campaigns that are killed, and a server that refuses."""

import smtplib
from collections.abc import Iterator

import pytest

import fdbqueue
from examples import mailer
from fdbqueue import Bury, Database, Snooze, Unavailable, Worker


@pytest.fixture
def db() -> Iterator[Database]:
    with fdbqueue.open("memory:") as database:
        yield database


def addresses(count: int) -> Iterator[str]:
    return (f"{number}@example.com" for number in range(count))


def test_a_flood_delays_no_other_tenant(
    db: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mails = mailer.open_mails(db)
    mailer.load(db, mails, "flood", "spring", addresses(600))
    mailer.load(db, mails, "gold", "hello", addresses(6))
    mailer.load(db, mails, "small", "reset", addresses(2))
    sent: list[str] = []
    worker = Worker(db, "mails", mailer.send, threads=1)
    monkeypatch.setattr(mailer, "deliver", lambda mail, _: until(sent, mail["tenant"], worker))
    worker.run()
    assert sent.count("small") == 2
    assert sent.count("gold") == 6
    assert sent.count("flood") <= 6
    mailer.report(db, mails)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["gold: 6 sent, 0 waiting", "small: 2 sent, 0 waiting"]


def until(sent: list[str], tenant: str, worker: Worker) -> None:
    sent.append(tenant)
    if len(sent) == 12:
        worker.stop()


def test_a_killed_campaign_goes_on_where_it_was(db: Database) -> None:
    mails = mailer.open_mails(db)

    def broken() -> Iterator[str]:
        yield from addresses(mailer.CHUNK + 10)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mailer.load(db, mails, "acme", "spring", broken())
    assert mails.statistics(db)["tasks"]["total"] == mailer.CHUNK
    for _ in range(2):
        assert mailer.load(db, mails, "acme", "spring", addresses(600)) == 600
    found = {task.data["to"] for task in mails.tasks(db, "r", 1_000)}
    assert (len(found), mails.statistics(db)["tasks"]["total"]) == (600, 600)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (smtplib.SMTPRecipientsRefused({"a@b": (550, b"unknown")}), Bury),
        (smtplib.SMTPRecipientsRefused({"a@b": (452, b"too many")}), Snooze),
        (ConnectionRefusedError("no server"), Unavailable),
    ],
)
def test_a_refusal_has_its_outcome(
    answer: Exception, outcome: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server:
        def __init__(self, *_: object, **__: object) -> None: ...
        def __enter__(self) -> "Server":
            return self

        def __exit__(self, *_: object) -> None: ...
        def send_message(self, message: object) -> None:  # noqa: ARG002  # as smtplib has it
            raise answer

    monkeypatch.setenv("SMTP_HOST", "127.0.0.1")
    monkeypatch.setattr(smtplib, "SMTP", Server)
    with pytest.raises(outcome):
        mailer.deliver({"tenant": "acme", "campaign": "spring", "to": "a@b"}, "1")
