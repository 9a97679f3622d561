"""`fdbqueue fleet`: the worker processes of all hosts, and the orders to them."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.visible import counted
from fdbqueue.fleet.steering import (
    Member,
    at_work,
    chosen,
    drain,
    left,
    members,
    pause,
    paused,
    releases,
    resume,
    undrained,
)
from fdbqueue.operate.cli.exits import say
from fdbqueue.operate.cli.frame import Here, again, cli, command
from fdbqueue.operate.cli.show import Row, columns, span, time_in

_LOOK_S = 1.0


@command(cli)
@click.argument("action", required=False, type=click.Choice(["drain", "pause", "resume"]))
@click.argument("targets", nargs=-1, metavar="[HOST | PID | HOST:PID]...")
@click.option("--detach", is_flag=True, help="give the order only: do not wait until it holds")
def fleet(here: Here, action: str | None, targets: tuple[str, ...], detach: bool) -> None:
    """List the workers of all hosts; or drain those of a host or a process, pause all, and resume them.

    Columns: worker, version, state, queues, held, memory in MB, age, heartbeat, trouble. `held` counts tasks,
    and `heartbeat` is the time since the last one. A drained process finishes the tasks that it holds, takes
    no other one, and ends; its supervisor does not replace it, and ends with the last one, with status 0.
    While the fleet is paused, no worker takes a task, later ones neither. A worker obeys within 5 s. Without
    --detach, the command waits until the processes have ended, or all have paused.
    """
    if (action == "drain") != bool(targets):
        raise click.UsageError("drain takes HOST, PID or HOST:PID, and the others take none")
    with here.database() as database:
        keys = RootKeys(here.root)
        if action is None:
            _list(here, database, keys)
        elif action == "drain":
            _drain(here, database, keys, targets, detach)
        elif action == "pause":
            _pause(here, database, keys, detach)
        else:
            resume(database, keys)
            here.tell("resumed", {"paused": False})


def _list(here: Here, database: Database, keys: RootKeys) -> None:
    found, since, now = members(database, keys), paused(database, keys), database.runtime.now()
    here.show([_row(one, now) for one in found], FLEET_COLUMNS)
    if since is not None:
        say(f"paused for {span(max(0.0, now - since.pause))}: `{again('fleet', 'resume')}`")
    if len(found_releases := releases(found)) > 1:
        told = ", ".join(f"{count} of {release}" for release, count in found_releases.items())
        say(f"several releases: {told}")


def _row(one: Member, now: float) -> Row:
    shown = asdict(one.presence)
    del shown["running"]
    beat_s = None if one.seen is None else max(0.0, now - one.seen)
    age_s = max(0.0, now - one.presence.since)
    return {"worker": one.place, **shown, "session": one.session.hex(), "age_s": age_s, "heartbeat_s": beat_s}


def _queues(row: Row) -> str:
    more = f" and {row['more_queues']} more" if row["more_queues"] else ""
    return " ".join(row["queues"]) + more


FLEET_COLUMNS = {
    **columns("worker", "version", "state", queues=_queues, held="held"),
    **columns(memory=lambda row: f"{row['memory_bytes'] / 1e6:.0f}" if row["memory_bytes"] else ""),
    **columns(age=time_in("age_s"), heartbeat=time_in("heartbeat_s"), trouble="trouble"),
}


def _drain(here: Here, database: Database, keys: RootKeys, targets: Sequence[str], detach: bool) -> None:
    found = members(database, keys)
    asked = list({one.session: one for target in targets for one in chosen(found, target)}.values())
    drain(database, keys, asked)
    held = sum(one.presence.held for one in asked)
    say(f"draining {counted(len(asked), 'worker')}, with {counted(held, 'task')}")
    while asked and not detach:
        still = left(members(database, keys), asked)
        drain(database, keys, undrained(still))  # again, if a session was lost before its worker obeyed
        there = {one.same for one in still}
        for one in asked:
            if one.same not in there:
                here.tell(f"{one.place} has ended", {"worker": one.place, "state": "ended"})
        asked = still
        database.runtime.sleep(_LOOK_S if asked else 0)


def _pause(here: Here, database: Database, keys: RootKeys, detach: bool) -> None:
    order = pause(database, keys)
    while at_work(found := members(database, keys), order) and not detach:
        database.runtime.sleep(_LOOK_S)
    here.tell(f"paused, with {counted(len(found), 'worker')}", {"paused": True, "workers": len(found)})
