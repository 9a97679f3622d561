"""The example of docs/questions.md on a cluster of our own with TLS: its certificates are made here."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtest.drills.servers import FDBCLI, FDBSERVER, free_ports, wait_until
from tests.conftest import CLUSTER_FILE
from tests.page import page
from tests.pages.blocks import blocks_of

OPENSSL = shutil.which("openssl")
if CLUSTER_FILE is None:
    pytest.skip("FDB_CLUSTER_FILE names no cluster", allow_module_level=True)
if FDBSERVER is None or FDBCLI is None or OPENSSL is None:
    pytest.skip("no fdbserver, fdbcli and openssl on the PATH for a TLS cluster", allow_module_level=True)

[EXAMPLE] = [block.text for block in blocks_of("", page("docs/questions.md")) if "FDB_TLS" in block.text]
PLACE, CONNECTION = "/etc/foundationdb", "shop:a1b2c3@10.0.0.1:4500"
COMMAND = f'fdbqueue() {{ "{sys.executable}" -m fdbqueue.operate.cli "$@"; }}\nset -e\n'


def made_certificates(directory: Path) -> Path:
    """An authority, and one certificate of it, for servers and clients."""
    directory.mkdir()
    for line in (
        "req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=node -keyout key.pem -out node.csr",
        "x509 -req -in node.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 1 -out cert.pem",
    ):
        subprocess.run([OPENSSL, *line.split()], cwd=directory, capture_output=True, check=True)
    return directory


def variables(certificates: Path) -> dict[str, str]:
    files = {"CA": "ca", "CERTIFICATE": "cert", "KEY": "key"}
    return {f"FDB_TLS_{what}_FILE": str(certificates / f"{file}.pem") for what, file in files.items()}


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    return made_certificates(tmp_path / "certificates")


@pytest.fixture
def connection(tmp_path: Path, certificates: Path) -> Iterator[str]:
    """A cluster of one server; what stands in its cluster file, before `:tls`."""
    [port] = free_ports(1)
    cluster_file = tmp_path / "server.cluster"
    cluster_file.write_text(f"tls:tls@127.0.0.1:{port}:tls\n")
    environment = {**os.environ, **variables(certificates)}
    places = [f"--cluster-file={cluster_file}", f"--datadir={tmp_path}", f"--logdir={tmp_path}"]
    command = [str(FDBSERVER), *places, f"--public-address=127.0.0.1:{port}:tls", "--cache-memory=256MiB"]
    with (tmp_path / "server.output").open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    asked = [str(FDBCLI), "-C", str(cluster_file), "--timeout", "60", "--exec"]

    def is_configured() -> bool:
        done = subprocess.run([*asked, "configure new single memory"], env=environment, capture_output=True)
        return b"Database created" in done.stdout

    try:
        wait_until(is_configured, "the cluster with TLS never came up")
        yield f"tls:tls@127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def run(script: str, place: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    place.mkdir()
    return subprocess.Popen(
        ["bash", "-c", COMMAND + script],
        cwd=place,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.timeout(400)
def test_the_example_of_tls_works_and_strangers_get_no_answer(
    tmp_path: Path, certificates: Path, connection: str
) -> None:
    assert PLACE in EXAMPLE
    assert CONNECTION in EXAMPLE
    script = EXAMPLE.replace(PLACE, str(certificates)).replace(CONNECTION, connection)
    client = run(
        script + "fdbqueue --url fdb:shop.cluster stats jobs | grep tasks.ready\n", tmp_path / "client", {}
    )
    output, _ = client.communicate(timeout=200)
    assert (client.returncode, output.split()[-1]) == (0, "1"), output

    ask = f"fdbqueue --url fdb:{tmp_path}/client/shop.cluster stats jobs\n"
    others = variables(made_certificates(tmp_path / "other certificates"))
    strangers = [run(ask, tmp_path / "none", {}), run(ask, tmp_path / "others", others)]
    for stranger in strangers:
        output, _ = stranger.communicate(timeout=200)
        assert (stranger.returncode, "no answer from fdb:" in output) == (2, True), output
