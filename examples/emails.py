"""E-mails by a function: five attempts, two at a time for each customer, and a report each day."""

import fdbqueue

emails = fdbqueue.Tasks("emails")


@emails.task(attempts=5, result_ttl=60, limits=lambda to, **_: {"customer": to})
def send(to: str, subject: str = "hi") -> str:
    print(f"sent {subject!r} to {to}")
    return to


def prepare(db: fdbqueue.Database) -> None:
    fdbqueue.Limit.set(db, "customer", slots=2, per_key=True)
    fdbqueue.TaskQueue.create(db, "emails", ttr=60, task_limits=["customer"], if_not_exists=True)
    data, options = send.call("boss@example.com", subject="report")
    fdbqueue.Schedule.create(
        db, "report", every=86_400, queue="emails", data=data, if_exists="keep", **options
    )


if __name__ == "__main__":
    with fdbqueue.open() as database:
        prepare(database)
        send.put(database, "ada@example.com")
        fdbqueue.Worker(database, "emails", emails).run(until_empty=True)
