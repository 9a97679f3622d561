"""The commands that serve: `dashboard`, the queues in a browser; `metrics`, their figures for Prometheus;
`serve`, task queues by another protocol.
"""

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from fdbqueue.core import limits
from fdbqueue.core.open import PRIVATE_URL, is_loopback
from fdbqueue.core.runtime import RealRuntime
from fdbqueue.core.signals import Interrupted
from fdbqueue.fleet.logs import logging_at
from fdbqueue.operate.cli.exits import CommandError, say
from fdbqueue.operate.cli.frame import PORTS, Here, UsablePath, cli, command, queue_names
from fdbqueue.operate.cli.redacting import in_environment
from fdbqueue.operate.cli.session import CONNECT_TIMEOUT_S

TOKEN_VARIABLE = "FDBQUEUE_DASHBOARD_TOKEN"
Function = Callable[..., Any]


def address_options(port: int) -> Callable[[Function], Function]:
    """Give a command the options of the address where it listens."""

    def with_options(function: Function) -> Function:
        told = "where to listen [127.0.0.1]"
        click.option("--host", default="127.0.0.1", metavar="ADDRESS", callback=_given, help=told)(function)
        told = f"0: a free one [{port}]"
        click.option("--port", type=PORTS, default=port, metavar="N", help=told)(function)
        return function

    return with_options


def _given(_: click.Context, __: click.Parameter, host: str) -> str:
    if not host:
        raise click.BadParameter("it is empty", param_hint="--host")
    return host


@contextmanager
def _listening(host: str | Path, port: int) -> Iterator[None]:
    """Raises: CommandError for an address where the block cannot listen."""
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot listen on {host}, port {port}: {error.strerror}") from None


@contextmanager
def _extra(name: str, told: str, *packages: str) -> Iterator[None]:
    """Raises: CommandError if the block imports a package that is not installed."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name not in packages:
            raise
        raise CommandError(f"{told} an extra: pip install 'fdbqueue[{name}]'") from None


@command(cli, json=False)
@address_options(8462)
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
    with _extra("dashboard", "the dashboard is", "starlette", "anyio", "jinja2", "uvicorn"):
        from fdbqueue.operate.dashboard import app as serving
    token = _token(token_file)
    if token is None and not is_loopback(host):
        raise CommandError(
            f"{host} is not an address of this machine alone, so browsers need a token: "
            f"set {TOKEN_VARIABLE}, or give --token-file"
        )
    own = (RealRuntime().host_name(), host) if token is not None else ()
    with logging_at("info"), here.database(timeout_s=None) as database:
        with _listening(host, port):
            app = serving.create_app(
                database,
                write=write,
                token=token,
                names=(*own, *names),
                place=here.url,
                root=here.root,
                redact=in_environment(),
            )
            listening = serving.listener(host, port)
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


@command(cli, json=False)
@click.option("--beanstalkd", "address", required=True, metavar="ADDRESS", help="HOST:PORT or unix:PATH")
@click.option(
    "--max-job-size",
    type=click.IntRange(1, limits.BATCH_BYTES_MAX),
    default=65_535,
    metavar="BYTES",
    help="of the body of a job [65535]",
)
@click.option("--create", is_flag=True, help="make the database, if there is none")
@click.option("--public", is_flag=True, help="allow an ADDRESS of a network: its clients need no password")
def serve(here: Here, address: str, max_job_size: int, create: bool, public: bool) -> None:
    """Serve task queues to the clients of another protocol: beanstalkd's.

    A tube is the queue beanstalkd/TUBE; a put is answered after its commit. Clients have no password. So an
    ADDRESS that is not of this machine alone needs --public; a socket at unix:PATH is for this user. SIGUSR1
    lets the server take no new jobs.
    """
    with _extra("aio", "serve needs", "greenlet"):
        from fdbqueue.integrations.beanstalkd.serving import serve as serving
    place = Address.of(address)
    if place.host and not is_loopback(place.host) and not public:
        raise CommandError(
            f"{place.host} is not an address of this machine alone, and clients have no password: give "
            "--public if its network may use all tubes"
        )
    if here.url != PRIVATE_URL:
        with here.database(create=create, timeout_s=None):
            pass  # its errors say what to do
    with logging_at("info"), place.listening() as listening:
        tell = partial(say, f"serving beanstalkd's protocol at {place.told(listening)}")
        ended_by = asyncio.run(serving(here.url, here.root, max_job_size, listening, tell))
    if ended_by:
        raise Interrupted(ended_by)


class Address(NamedTuple):
    """Where `serve` listens."""

    host: str
    """Empty for a socket at a path."""
    port: int
    path: Path

    @classmethod
    def of(cls, address: str) -> "Address":
        host, _, rest = address.rpartition(":")
        if host == "unix" and rest:
            return cls("", 0, Path(rest))
        if host and rest.isdecimal() and int(rest) < 65_536:
            return cls(host.strip("[]"), int(rest), Path())
        raise click.BadParameter("it is neither HOST:PORT nor unix:PATH", param_hint="--beanstalkd")

    def told(self, listening: socket.socket) -> str:
        return "{}:{}".format(*listening.getsockname()[:2]) if self.host else str(self.path)

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """A bound socket. Raises: CommandError."""
        with _listening(self.host or self.path, self.port), self._bound() as bound:
            yield bound

    @contextmanager
    def _bound(self) -> Iterator[socket.socket]:
        """That of a path is for this user alone, and removed at the end."""
        if self.host:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            with socket.create_server((self.host, self.port), family=family) as bound:
                yield bound
            return
        with socket.socket(socket.AF_UNIX) as bound:
            if self.path.is_socket() and bound.connect_ex(str(self.path)) == errno.ECONNREFUSED:
                self.path.unlink()  # that of a server that was killed
        with socket.socket(socket.AF_UNIX) as bound:
            before = os.umask(0o177)
            try:
                bound.bind(str(self.path))
            finally:
                os.umask(before)
            try:
                yield bound
            finally:
                self.path.unlink(missing_ok=True)


@command(cli, json=False)
@click.argument("queue", nargs=-1, metavar="[QUEUE]...", shell_complete=queue_names)
@address_options(9464)
@click.option("--keys", type=click.IntRange(0, 50), default=10, metavar="N", help="busiest task keys [10]")
@click.option(
    "--processes",
    type=UsablePath(exists=True, file_okay=False, readable=True, path_type=Path),
    envvar="PROMETHEUS_MULTIPROC_DIR",
    metavar="DIR",
    help="also the metrics that processes keep there [$PROMETHEUS_MULTIPROC_DIR]",
)
@click.option("--once", is_flag=True, help="print the metrics and end, without a server")
def metrics(
    here: Here, queue: tuple[str, ...], port: int, host: str, keys: int, processes: Path | None, once: bool
) -> None:
    """Serve the figures of all queues, or of each QUEUE, to Prometheus: /metrics, /healthz, /readyz.

    One server is enough for a database. Each scrape is one look, of one round trip, or two after a queue was
    created. If the database does not answer, /metrics has fdbqueue_up 0, and /readyz is 503. The server has
    no password: another ADDRESS shows the names of queues, and the busiest task keys, to its network.
    """
    with _extra("metrics", "metrics are", "prometheus_client"):
        from fdbqueue.integrations.prometheus import serving
    answer_s = CONNECT_TIMEOUT_S if once or queue else None
    with here.database(timeout_s=answer_s) as database:
        for name in queue:
            here.definition(database, name)
        registry = serving.registry_of(database, queue, keys, here.root, processes)
        if once:
            here.out().print(serving.page_of(registry))
            return
        with _listening(host, port):
            server = serving.server_of(database, registry, host, port)
        with server:
            say(f"serving {server.url}/metrics")
            server.serve_forever()
