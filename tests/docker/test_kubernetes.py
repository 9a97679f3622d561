"""The example for the operator: its objects fit each other. (No cluster is asked.)"""

from tests.docker.files import compose, is_pinned, kubernetes

OBJECTS = {found["kind"]: found for found in kubernetes()}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
CONTAINERS = [*POD["initContainers"], *POD["containers"]]


def test_every_object_has_a_name():
    """Every object has a kind and a version, too."""
    assert all(found["apiVersion"] and found["metadata"]["name"] for found in kubernetes())


def test_workers_read_the_cluster_file_that_the_operator_keeps():
    """In a ConfigMap named after the cluster; they keep a copy of their own where they may write."""
    cluster = OBJECTS["FoundationDBCluster"]["metadata"]["name"]
    for container in CONTAINERS:
        environment = {variable["name"]: variable for variable in container["env"]}
        reference = environment["FDB_CLUSTER_FILE_CONTENTS"]["valueFrom"]["configMapKeyRef"]
        assert reference == {"name": f"{cluster}-config", "key": "cluster-file"}
        (mount,) = container["volumeMounts"]
        assert environment["FDB_CLUSTER_FILE"]["value"].startswith(mount["mountPath"])
        assert mount["name"] in {volume["name"] for volume in POD["volumes"]}


def test_containers_are_locked_down():
    """No root, no gained privileges, writes to mounted volumes only."""
    assert POD["securityContext"]["runAsNonRoot"]
    for container in CONTAINERS:
        assert is_pinned(container["image"])
        context = container["securityContext"]
        assert not context["allowPrivilegeEscalation"]
        assert context["readOnlyRootFilesystem"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_the_fleet_selects_its_own_pods():
    """The pods of the database have their service account."""
    fleet = OBJECTS["Deployment"]["spec"]
    assert fleet["selector"]["matchLabels"].items() <= fleet["template"]["metadata"]["labels"].items()
    pods = OBJECTS["FoundationDBCluster"]["spec"]["processes"]["general"]["podTemplate"]["spec"]
    assert pods["serviceAccountName"] == OBJECTS["ServiceAccount"]["metadata"]["name"]
    assert OBJECTS["RoleBinding"]["roleRef"]["name"] == OBJECTS["Role"]["metadata"]["name"]


def test_pods_run_the_commands_of_the_compose_services():
    """Scripts with commands that are tried."""
    services = compose()["services"]
    commands = {container["name"]: container["args"] for container in CONTAINERS}
    assert commands == {name: services[name]["command"] for name in ("queues", "worker")}
