"""`fdbqueue dashboard`: the queues in a browser."""

import os
from pathlib import Path
from typing import Any

import click

from fdbqueue.core import limits
from fdbqueue.core.open import is_loopback
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.fleet.logs import logging_at
from fdbqueue.operate.cli.exits import CommandError, say
from fdbqueue.operate.cli.group import Here, cli, command
from fdbqueue.operate.cli.parameters import PORTS, UsablePath

PORT = 8462
TOKEN_VARIABLE = "FDBQUEUE_DASHBOARD_TOKEN"
EXTRA = ("starlette", "anyio", "jinja2", "uvicorn")


@command(cli, json=False)
@click.option("--port", type=PORTS, default=PORT, metavar="N", help=f"0: a free one [{PORT}]")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen [127.0.0.1]")
@click.option("--write", is_flag=True, help="allow actions: pause, kick, delete, edit, redrive")
@click.option(
    "--token-file",
    type=UsablePath(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help=f"the token that browsers sign in with [${TOKEN_VARIABLE}]",
)
@click.option("--name", "names", multiple=True, metavar="NAME", help="another host name to answer to")
def dashboard(
    here: Here, port: int, host: str, write: bool, token_file: Path | None, names: tuple[str, ...]
) -> None:
    """Show all queues, their tasks and workers in a browser.

    It is read-only without --write, and logs each action. On an ADDRESS of this machine alone, it asks for
    no token unless one is given. Any other ADDRESS needs a token, of 16 characters or more. A proxy in
    front adds TLS; each of its host names is a --name.
    """
    if not host:
        raise click.BadParameter("it is empty", param_hint="--host")
    serving, token = _serving(), _token(token_file)
    if token is None and not is_loopback(host):
        raise CommandError(
            f"{host} is not an address of this machine alone, so browsers need a token: "
            f"set {TOKEN_VARIABLE}, or give --token-file"
        )
    own = (RealRuntime().host_name(), host) if token is not None else ()
    with logging_at("info"), here.database(timeout_s=None) as database:
        try:
            app = serving.create_app(
                database, write=write, token=token, names=(*own, *names), place=here.url, root=here.root
            )
            listening = serving.listener(host, port)
        except OSError as error:
            raise CommandError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
        with listening:
            say(f"serving {serving.url_of(listening)}{'' if write else ', read-only'}")
            serving.Server(app).run(sockets=[listening])


def _token(file: Path | None) -> str | None:
    """The token of the file, or of the environment. Raises CommandError for one that can be guessed."""
    source = TOKEN_VARIABLE if file is None else str(file)
    try:
        token = os.environ.get(TOKEN_VARIABLE) if file is None else file.read_text().strip()
    except UnicodeDecodeError:
        raise CommandError(f"the token of {file} is no text") from None
    if token is not None and len(token) < limits.TOKEN_LENGTH_MIN:
        raise CommandError(f"the token of {source} has less than {limits.TOKEN_LENGTH_MIN} characters")
    return token


def _serving() -> Any:
    """The part of the library that needs the extra. Raises CommandError without it."""
    try:
        from fdbqueue.operate.dashboard import app as serving
    except ModuleNotFoundError as missing:
        if missing.name not in EXTRA:
            raise
        raise CommandError("the dashboard is an extra: pip install 'fdbqueue[dashboard]'") from None
    return serving
