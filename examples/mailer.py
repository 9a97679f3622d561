"""A fair mailer for many tenants: the newsletter of one does not delay the password reset of another.

    python examples/mailer.py acme spring spring.txt       # a campaign: an address a line
    fdbqueue work mails examples.mailer:send               # workers, here or on any machine
    python examples/mailer.py                              # for each tenant: sent, waiting

A tenant is the key of its mails, and the queue goes in rounds: each tenant gets one mail a round, a tenant
with a weight more. $SMTP_HOST is the mail server; without it the mails are only counted.
"""

import os
import smtplib
import sys
from collections.abc import Iterator
from email.message import EmailMessage
from itertools import islice
from pathlib import Path

import fdbqueue
from fdbqueue import Bury, Database, Done, HeldTask, Snooze, TaskQueue, Transaction, Unavailable

WEIGHTS = {"gold": 3}
SENT = fdbqueue.Subspace(("mailer", "sent"))
LOADED = fdbqueue.Subspace(("mailer", "loaded"))
CHUNK = 100
LIMITED_S = 60
ONE = (1).to_bytes(8, "little")
SMTP_TRY_LATER = range(400, 500)


def open_mails(db: Database, ttr: float = 60) -> TaskQueue:
    """`ttr`: seconds after which the mail of a dead worker goes to another."""
    return TaskQueue.create(db, "mails", "fair", ttr=ttr, weights=WEIGHTS, if_not_exists=True)


def load(db: Database, mails: TaskQueue, tenant: str, campaign: str, addresses: Iterator[str]) -> int:
    """Put the mails of a campaign, and return the number of its addresses.

    A campaign is too large for one transaction, so each chunk notes how far the campaign is. If the program
    is killed, start it again with the same file: it goes on behind the last chunk.
    """
    done = loaded(db, tenant, campaign)
    rest = islice(addresses, done, None)
    while chunk := list(islice(rest, CHUNK)):
        load_chunk(db, mails, tenant, campaign, chunk, done)
        done += len(chunk)
    return done


@fdbqueue.transactional
def load_chunk(
    tr: Transaction, mails: TaskQueue, tenant: str, campaign: str, chunk: list[str], done: int
) -> None:
    """Nothing happens if another process has put this chunk."""
    if loaded(tr, tenant, campaign) == done:
        tasks = [{"tenant": tenant, "campaign": campaign, "to": address} for address in chunk]
        mails.put_many(tr, tasks, key=tenant)
        tr[LOADED[tenant][campaign]] = str(done + len(chunk)).encode()


@fdbqueue.transactional
def loaded(tr: Transaction, tenant: str, campaign: str) -> int:
    done = tr[LOADED[tenant][campaign]]
    return int(bytes(done)) if done.present() else 0


def send(task: HeldTask) -> None:
    """The handler: send one mail; count it for its tenant in the transaction that acks the task."""
    deliver(task.data, task.id)
    raise Done(lambda tr: tr.add(SENT[task.data["tenant"]], ONE))


def deliver(mail: dict[str, str], id: str) -> None:
    """Give a mail to the server. The id of the task is the Message-ID: it tells a second delivery."""
    host = os.environ.get("SMTP_HOST")
    if host is None:
        return
    try:
        with smtplib.SMTP(host, int(os.environ.get("SMTP_PORT", "25")), timeout=20) as server:
            server.send_message(message(mail, id))
    except smtplib.SMTPRecipientsRefused as error:
        code, reason = error.recipients[mail["to"]]
        if code in SMTP_TRY_LATER:
            raise Snooze(LIMITED_S, f"{code} {reason!r}") from error
        raise Bury(f"{code} {reason!r}") from error
    except (OSError, smtplib.SMTPServerDisconnected) as error:
        raise Unavailable(f"{host}: {error}") from error


def message(mail: dict[str, str], id: str) -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"] = f"{mail['tenant']}@mailer.example", mail["to"]
    made["Subject"], made["Message-ID"] = mail["campaign"], f"<{id}@mailer.example>"
    made.set_content(f"{mail['campaign']}, from {mail['tenant']}\n")
    return made


def report(db: Database, mails: TaskQueue) -> None:
    waiting = {row.key: row for row in mails.key_statistics(db, limit=100)}
    sent = {SENT.unpack(bytes(key))[0]: value for key, value in db.get_range_startswith(SENT.key())}
    for tenant in sorted(waiting.keys() | sent.keys()):
        count = int.from_bytes(sent.get(tenant, b""), "little")
        row = waiting.get(tenant)
        print(f"{tenant}: {count} sent, {row.ready if row else 0} waiting")


def main() -> None:
    with fdbqueue.open() as db:
        mails = open_mails(db)
        if not sys.argv[1:]:
            report(db, mails)
            return
        tenant, campaign, file = sys.argv[1:]
        with Path(file).open() as lines:
            count = load(db, mails, tenant, campaign, (line.strip() for line in lines))
        print(f"{campaign} of {tenant}: {count} mails")


if __name__ == "__main__":
    try:
        main()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has ended, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
