"""compose.yaml holds together: whatever it names is there. (Docker is not started.)"""

import ipaddress
import re

import pytest

from tests.docker.files import DOCKER, compose, dockerfile, is_pinned, kubernetes

FILE = compose()
SERVICES = FILE["services"]
SERVERS = ["fdb1", "fdb2", "fdb3"]
SCALED = ["worker", "locust-worker"]


@pytest.fixture(params=SERVICES)
def service(request):
    return SERVICES[request.param]


def test_a_service_waits_only_for_possible_states(service):
    """For services that exist; for health, where it is checked; for an end, where there is one."""
    for name, wait in service.get("depends_on", {}).items():
        other = SERVICES[name]
        if wait["condition"] == "service_healthy":
            assert other["healthcheck"]["test"][0] == "CMD"
        if wait["condition"] == "service_completed_successfully":
            assert "restart" not in other


def test_images_have_versions(service):
    """Images that are built here have a version, too."""
    assert is_pinned(service["image"])


def test_volumes_and_networks_are_declared(service):
    """Mounted files exist, too."""
    assert set(service["networks"]) <= set(FILE["networks"])
    for mount in service.get("volumes", []):
        source = mount.split(":")[0]
        assert (DOCKER / source).exists() if source.startswith(".") else source in FILE["volumes"]


def test_each_built_image_is_a_target_of_the_dockerfile(service):
    """From the top of the tree."""
    if "build" in service:
        build = service["build"]
        assert (DOCKER / build["context"] / build["dockerfile"]).samefile(DOCKER / "Dockerfile")
        assert build["target"] in dockerfile()[1]


def test_commands_need_no_shell(service):
    """Lists: the program gets the signals."""
    assert isinstance(service.get("command", []), list)
    assert isinstance(service.get("entrypoint", []), list)


@pytest.mark.parametrize("name", SCALED)
def test_a_scaled_service_has_no_exclusive_resource(name):
    """A name, a port, an address."""
    service = SERVICES[name]
    assert not service.get("ports")
    assert "container_name" not in service
    assert isinstance(service["networks"], list)


@pytest.mark.parametrize("name", SCALED)
def test_workers_get_time_to_finish(name):
    """Longer than Docker's ten seconds."""
    assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= 30


def test_three_servers_are_the_coordinators_of_all():
    """Each keeps its address and its own data."""
    contents = FILE["x-cluster"]["FDB_CLUSTER_FILE_CONTENTS"]
    (subnet,) = [
        ipaddress.ip_network(config["subnet"]) for config in FILE["networks"]["cluster"]["ipam"]["config"]
    ]
    addresses = [SERVICES[name]["networks"]["cluster"]["ipv4_address"] for name in SERVERS]
    assert re.fullmatch(r"\w+:\w+@(.+)", contents)[1] == ",".join(f"{address}:4500" for address in addresses)
    assert all(ipaddress.ip_address(address) in subnet for address in addresses)
    assert len({tuple(SERVICES[name]["volumes"]) for name in SERVERS}) == 3
    assert all(
        service["environment"]["FDB_CLUSTER_FILE_CONTENTS"] == contents for service in SERVICES.values()
    )


def test_servers_and_clients_are_of_one_version():
    """The client library comes out of the server's image."""
    servers = {SERVICES[name]["image"].rpartition(":")[2] for name in [*SERVERS, "fdb-init"]}
    built = {s["build"]["args"]["FDB_VERSION"] for s in SERVICES.values() if "build" in s}
    operated = {found["spec"]["version"] for found in kubernetes() if found["kind"] == "FoundationDBCluster"}
    (version,) = servers | built | operated | {dockerfile()[0]["FDB_VERSION"]}
    assert version.startswith("7.3.")
