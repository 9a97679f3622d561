"""`fdbqueue fleet`: the worker processes of all hosts, and the orders to them."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import click

from fdbqueue.core import limits
from fdbqueue.core.database import Database
from fdbqueue.core.root_keys import RootKeys
from fdbqueue.core.visible import counted
from fdbqueue.fleet.gate import Order
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
    told,
    undrained,
)
from fdbqueue.operate.cli.exits import Refused, say
from fdbqueue.operate.cli.frame import RETAIN, Here, again, cli, command
from fdbqueue.operate.cli.show import Row, columns, span, time_in

_LOOK_S = 1.0


@command(cli)
@click.argument("action", required=False, type=click.Choice(["drain", "pause", "resume"]))
@click.argument("targets", nargs=-1, metavar="[HOST | PID | HOST:PID]...")
@click.option("--detach", is_flag=True, help="do not wait for the ends of tasks, or until all have paused")
@click.option("--for", "for_s", type=RETAIN, metavar="S", help="seconds after which a pause ends  [3600]")
def fleet(
    here: Here, action: str | None, targets: tuple[str, ...], detach: bool, for_s: float | None
) -> None:
    """List the workers of all hosts; or drain those of a host or a process, pause all, and resume them.

    Columns: worker, version, state, queues, held, memory in MB, age, heartbeat, trouble. `held` counts tasks,
    and `heartbeat` is the time since the last one. A drained process finishes the tasks that it holds, takes
    no other one, and ends; its supervisor does not replace it, and ends with the last one, with status 0.
    While the fleet is paused, no worker takes a task, later ones neither, until `resume` or the end that
    `--for` sets; of two pauses the later end holds. A worker obeys within 5 s. Without
    --detach, the command waits until the processes have ended, or all have paused. Status 1, with their
    names, says that some did not obey in 30 s.
    """
    if (action == "drain") != bool(targets):
        raise click.UsageError("drain takes HOST, PID or HOST:PID, and the others take none")
    if for_s is not None and action != "pause":
        raise click.UsageError("--for goes with pause")
    with here.database() as database:
        keys = RootKeys(here.root)
        if action is None:
            _list(here, database, keys)
        elif action == "drain":
            _drain(here, database, keys, targets, detach)
        elif action == "pause":
            _pause(here, database, keys, limits.FLEET_PAUSE_S if for_s is None else for_s, detach)
        else:
            resume(database, keys)
            here.tell("resumed", {"paused": False})


def _list(here: Here, database: Database, keys: RootKeys) -> None:
    found, order, now = members(database, keys), paused(database, keys), database.runtime.now()
    here.show([_row(one, now) for one in found], FLEET_COLUMNS)
    if not found:
        say("no worker is alive")
    if order is not None:
        say(f"paused: {_ends(order, now)}")
    if len(found_releases := releases(found)) > 1:
        told = ", ".join(f"{count} of {release}" for release, count in found_releases.items())
        say(f"several releases: {told}")


def _row(one: Member, now: float) -> Row:
    shown = asdict(one.presence)
    del shown["running"]
    ages = {"age_s": one.age_s(now), "heartbeat_s": one.heartbeat_s(now)}
    return {"worker": one.place, **shown, "session": one.session.hex(), **ages}


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
    wait = _patience(database)
    while asked:
        still = left(members(database, keys), asked)
        late = undrained(still)
        drain(database, keys, late)  # again, if a session was lost before its worker obeyed
        there = {one.same for one in still}
        for one in asked:
            if one.same not in there:
                here.tell(f"{one.place} has ended", {"worker": one.place, "state": "ended"})
        asked = late if detach else still
        wait(asked, late)


def _patience(database: Database) -> Callable[[Sequence[Member], Sequence[Member]], None]:
    """Waits for workers, and for those among them that have not obeyed no longer than a bound."""
    until = database.runtime.monotonic() + limits.ORDERS_PATIENCE_S

    def wait(those: Sequence[Member], late: Sequence[Member]) -> None:
        """Raises Refused."""
        if late and database.runtime.monotonic() > until:
            why = f"in {limits.ORDERS_PATIENCE_S:g} s: it hangs, or its release is older; SIGTERM ends it"
            raise Refused(f"{told(late)} did not obey {why}")
        database.runtime.sleep(_LOOK_S if those else 0)

    return wait


def _pause(here: Here, database: Database, keys: RootKeys, for_s: float, detach: bool) -> None:
    order, wait = pause(database, keys, for_s), _patience(database)
    while (late := at_work(found := members(database, keys), order)) and not detach:
        order = _in_force(paused(database, keys))
        wait(late, late)
    told = f"paused, with {counted(len(found), 'worker')}: {_ends(order, database.runtime.now())}"
    here.tell(told, {"paused": True, "until": order.pause or None, "workers": len(found)})


def _in_force(order: Order | None) -> Order:
    """Raises Refused."""
    if order is None:
        raise Refused("the pause is over, by its time or a resume, before all have paused: give it again")
    return order


def _ends(order: Order, now: float) -> str:
    ends = f"it ends in {span(max(0.0, order.pause - now))}, or with" if order.pause else "it ends with"
    return f"{ends} `{again('fleet', 'resume')}`"
