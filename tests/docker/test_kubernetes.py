"""The example for the operator: its objects fit each other. (No cluster is asked.)"""

import pytest

from tests.docker.files import compose, is_pinned, kubernetes

OBJECTS = {found["kind"]: found for found in kubernetes() if found["kind"] not in ("Deployment", "Service")}
DEPLOYMENTS = {
    found["metadata"]["name"]: found["spec"] for found in kubernetes() if found["kind"] == "Deployment"
}
PODS = {name: spec["template"]["spec"] for name, spec in DEPLOYMENTS.items()}


def containers(pod):
    return [*pod.get("initContainers", []), *pod["containers"]]


def test_every_object_has_a_name():
    """Every object has a kind and a version, too."""
    assert all(found["apiVersion"] and found["metadata"]["name"] for found in kubernetes())


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_pods_read_the_cluster_file_that_the_operator_keeps(pod):
    """In a ConfigMap named after the cluster; they keep a copy of their own where they may write."""
    cluster = OBJECTS["FoundationDBCluster"]["metadata"]["name"]
    for container in containers(pod):
        environment = {variable["name"]: variable for variable in container["env"]}
        reference = environment["FDB_CLUSTER_FILE_CONTENTS"]["valueFrom"]["configMapKeyRef"]
        assert reference == {"name": f"{cluster}-config", "key": "cluster-file"}
        (mount,) = container["volumeMounts"]
        assert environment["FDB_CLUSTER_FILE"]["value"].startswith(mount["mountPath"])
        assert mount["name"] in {volume["name"] for volume in pod["volumes"]}


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_containers_are_locked_down(pod):
    """No root, no gained privileges, writes to mounted volumes only."""
    assert pod["securityContext"]["runAsNonRoot"]
    for container in containers(pod):
        assert is_pinned(container["image"])
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("deployment", DEPLOYMENTS.values(), ids=DEPLOYMENTS)
def test_a_deployment_selects_its_own_pods(deployment):
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["selector"]["matchLabels"].items() <= labels.items()


def test_the_pods_of_the_database_have_their_service_account():
    pods = OBJECTS["FoundationDBCluster"]["spec"]["processes"]["general"]["podTemplate"]["spec"]
    assert pods["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]
    assert OBJECTS["RoleBinding"]["roleRef"]["name"] == OBJECTS["Role"]["metadata"]["name"]


def test_pods_run_the_commands_of_the_compose_services():
    """Scripts with commands that are tried."""
    services = compose()["services"]
    commands = {container["name"]: container["args"] for container in containers(PODS["fdbqueue-worker"])}
    assert commands == {name: services[name]["command"] for name in ("queues", "worker")}
