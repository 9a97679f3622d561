"""The options beside Locust's own. A master hands them to its workers."""

from argparse import Namespace
from pathlib import Path

import locust
from locust.argument_parser import LocustArgumentParser

from loadtest.shapes import SHAPES, SPAWN_RATE, USERS

BACKLOG = 5_000


def install() -> None:
    locust.events.init_command_line_parser.add_listener(add_options)


def add_options(parser: LocustArgumentParser, **_: object) -> None:
    parser.set_defaults(num_users=USERS, spawn_rate=SPAWN_RATE)
    parser.add_argument(
        "--url",
        default=None,
        env_var="FDBQUEUE_URL",
        include_in_web_ui=False,
        help="the database: embedded:PATH, memory: (one process) or fdb:CLUSTER_FILE; "
        "default: as fdbqueue.open() decides",
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="steady", help="how the users come and go")
    parser.add_argument(
        "--backlog", type=int, default=BACKLOG, help="producers pause while this number of items wait"
    )
    parser.add_argument(
        "--plots", default=None, metavar="DIR", include_in_web_ui=False, help="write PNG plots to DIR"
    )
    # The master's, for its workers: under it lies all that one test run writes.
    parser.add_argument(
        "--run-id", default="", include_in_web_ui=False, help="not for users: set by the master"
    )


def plots_of(parsed: Namespace) -> Path | None:
    return Path(parsed.plots) if parsed.plots else None
