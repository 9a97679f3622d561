"""`fdbqueue metrics`: the figures of queues, for Prometheus."""

from pathlib import Path
from typing import Any

import click

from fdbqueue.operate.cli.exits import CommandError, say
from fdbqueue.operate.cli.group import Here, cli, command, queue_names
from fdbqueue.operate.cli.parameters import PORTS, UsablePath
from fdbqueue.operate.cli.session import CONNECT_TIMEOUT_S

PORT = 9464


@command(cli, json=False)
@click.argument("queue", nargs=-1, metavar="[QUEUE]...", shell_complete=queue_names)
@click.option("--port", type=PORTS, default=PORT, metavar="N", help=f"0: a free one [{PORT}]")
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen [127.0.0.1]")
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
    if not host:
        raise click.BadParameter("it is empty", param_hint="--host")
    serving = _serving()
    answer_s = CONNECT_TIMEOUT_S if once or queue else None
    with here.database(timeout_s=answer_s) as database:
        for name in queue:
            here.definition(database, name)
        registry = serving.registry_of(database, queue, keys, here.root, processes)
        if once:
            here.out().print(serving.page_of(registry))
            return
        try:
            server = serving.server_of(database, registry, host, port)
        except OSError as error:
            raise CommandError(f"cannot listen on {host}, port {port}: {error.strerror}") from None
        with server:
            say(f"serving {server.url}/metrics")
            server.serve_forever()


def _serving() -> Any:
    """The part of the library that needs the extra. Raises CommandError without it."""
    try:
        from fdbqueue.integrations.prometheus import serving
    except ModuleNotFoundError as missing:
        if missing.name != "prometheus_client":
            raise
        raise CommandError("metrics are an extra: pip install 'fdbqueue[metrics]'") from None
    return serving
