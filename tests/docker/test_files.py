"""The files of docker/ hold together, and what containers start runs here. No container is started."""

import fnmatch
import ipaddress
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

import fdbqueue
from fdbqueue.integrations.prometheus import QueueCollector
from tests.docker.files import (
    DOCKER,
    TREE,
    ancestry,
    compose,
    dockerfile,
    is_exec_form,
    is_pinned,
    kubernetes,
    objects,
)

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


ARGUMENTS, STAGES = dockerfile()
SHIPPED = ["worker", "loadtest"]


@pytest.mark.parametrize("stage", STAGES.values(), ids=lambda stage: stage.name)
def test_each_base_image_has_a_version(stage):
    """No `latest`, no tag that moves under a build."""
    base = stage.base.replace("${FDB_VERSION}", ARGUMENTS["FDB_VERSION"])
    assert base in STAGES or is_pinned(base)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_container_runs_without_root_and_says_how_it_is(name):
    """The user is set before anything runs, and never set back."""
    stages = list(ancestry(STAGES, name))
    users = [user for stage in stages for user in stage.all("USER")]
    assert users
    assert not {"root", "0"} & set(users)
    assert [check for stage in stages for check in stage.all("HEALTHCHECK")]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_program_gets_the_signals(name):
    """Commands are lists: a shell in between would keep them."""
    stages = list(ancestry(STAGES, name))
    commands = [text for stage in stages for word in ("ENTRYPOINT", "CMD") for text in stage.all(word)]
    checks = [text.rpartition("CMD ")[2] for stage in stages for text in stage.all("HEALTHCHECK")]
    assert len(commands) >= 2
    assert all(is_exec_form(text) for text in [*commands, *checks])


@pytest.mark.parametrize("name", SHIPPED)
def test_what_built_an_image_does_not_ship_with_it(name):
    """Compilers and caches stay behind: the final images run nothing but useradd."""
    for stage in ancestry(STAGES, name):
        assert all(command.startswith("useradd") for command in stage.all("RUN"))
        assert not stage.all("ADD")


def test_packages_leave_no_cache():
    """The images keep no cache of pip or apt."""
    for stage in STAGES.values():
        for command in stage.all("RUN"):
            if "apt-get" in command:
                assert "--no-install-recommends" in command
                assert "rm -rf /var/lib/apt/lists" in command
            if "pip install" in command:
                environment = " ".join(e for above in ancestry(STAGES, stage.name) for e in above.all("ENV"))
                assert "PIP_NO_CACHE_DIR=1" in environment


def copies():
    for stage in STAGES.values():
        for text in stage.all("COPY"):
            words = text.split()
            flags = [word for word in words if word.startswith("--")]
            yield flags, [word for word in words if not word.startswith("--")][:-1]


def test_each_copied_file_exists():
    """From the tree, where .dockerignore lets it through, or from a stage that exists."""
    allowed = [line[1:] for line in (TREE / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for flags, sources in copies():
        origin = [flag.removeprefix("--from=") for flag in flags if flag.startswith("--from=")]
        if origin:
            assert origin[0] in STAGES
            continue
        for source in sources:
            assert (TREE / source).exists(), source
            assert any(fnmatch.fnmatch(source, pattern) for pattern in allowed), source


@pytest.mark.parametrize("name", ["entrypoint.sh", "healthcheck.py", "init-cluster.sh"])
def test_scripts_are_executable(name):
    """Where they lie, too: the tests start them there."""
    assert (DOCKER / name).stat().st_mode & stat.S_IXUSR


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


(HPA,) = objects("hpa.yaml")
(KEDA,) = objects("keda.yaml")
(BUDGET,) = objects("disruption.yaml")
BY_NAME = {(found["kind"], found["metadata"]["name"]): found.get("spec") for found in kubernetes()}
WORKER = BY_NAME["Deployment", "fdbqueue-worker"]
TRIGGERS = [trigger["metadata"] for trigger in KEDA["spec"]["triggers"]]
STRING, NUMBER = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}


def closed(**properties):
    return {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "required": [*properties],
    }


TRIGGER = closed(
    type={"const": "metrics-api"},
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=closed(
        format={"const": "prometheus"},
        url={"type": "string", "pattern": "^http://"},
        valueLocation=STRING,
        # The metadata of a trigger are strings, numbers too.
        targetValue={"type": "string", "pattern": r"^[1-9]\d*$"},
    ),
)
# The part of KEDA's definition that the example uses, by KEDA's documentation.
SCALED_OBJECT = closed(
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=closed(name=STRING),
    spec=closed(
        scaleTargetRef=closed(name=STRING),
        minReplicaCount=NUMBER,
        maxReplicaCount=NUMBER,
        pollingInterval=NUMBER,
        fallback=closed(failureThreshold=NUMBER, replicas=NUMBER),
        triggers={"type": "array", "minItems": 1, "items": TRIGGER},
    ),
)


def scraped(db):
    registry = CollectorRegistry()
    registry.register(QueueCollector(db))
    return generate_latest(registry).decode()


def threads():
    command = compose()["services"]["worker"]["command"]
    return command[command.index("--threads") + 1]


def test_the_budget_covers_the_workers():
    assert BUDGET["spec"]["selector"] == WORKER["selector"]


@pytest.mark.parametrize("scaler", [HPA, KEDA], ids=["hpa", "keda"])
def test_an_autoscaler_scales_the_workers(scaler):
    assert ("Deployment", scaler["spec"]["scaleTargetRef"]["name"]) in BY_NAME


def test_one_autoscaler_is_chosen_by_hand():
    """Two for one deployment would undo each other's work."""
    assert not {"HorizontalPodAutoscaler", "ScaledObject"} & {kind for kind, _ in BY_NAME}


def test_keda_leaves_a_process_that_passes():
    """A delay that ends is counted as ready when a worker has swept it."""
    assert KEDA["spec"]["minReplicaCount"] > 0


def test_keda_reads_the_service_of_the_metrics():
    port = BY_NAME["Service", "fdbqueue-metrics"]["ports"][0]["port"]
    assert {trigger["url"] for trigger in TRIGGERS} == {f"http://fdbqueue-metrics:{port}/metrics"}


def test_keda_reads_figures_that_exist():
    """Each value is one sample of a scrape, by its labels in their order."""
    with fdbqueue.open("memory:") as db:
        fdbqueue.TaskQueue.create(db, "emails", "fifottl", ttr=60)
        found = {line.rsplit(" ", 1)[0] for line in scraped(db).splitlines()}
    assert {trigger["valueLocation"] for trigger in TRIGGERS} <= found


def test_a_running_task_has_a_thread():
    """A fleet is not shrunk below the tasks that it runs."""
    (running,) = (one["targetValue"] for one in TRIGGERS if '"taken"' in one["valueLocation"])
    assert running == threads()


def test_keda_would_read_its_object():
    jsonschema = pytest.importorskip(
        "jsonschema", reason="needs jsonschema, which kubernetes-validate brings"
    )
    jsonschema.validate(KEDA, SCALED_OBJECT)


@pytest.mark.parametrize("name", ["worker", "metrics", "disruption", "hpa"])
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_kubernetes_would_read_its_objects(name, version):
    validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate")
    for found in yaml.safe_load_all((DOCKER / "kubernetes" / f"{name}.yaml").read_text()):
        validate.validate(found, version, strict=True)


def start(*command, **environment):
    program = Path(sys.executable).parent
    path = f"{program}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        [str(part) for part in command],
        env={
            "PATH": path,
            # Those of tests/guard.py, which moves the default root of a run with a cluster.
            **{name: text for name, text in os.environ.items() if name.startswith("FDBQUEUE_TEST_")},
            "PYTHONPATH": os.pathsep.join(filter(None, [str(TREE), os.environ.get("PYTHONPATH")])),
            **{name: str(text) for name, text in environment.items()},
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*command, **environment):
    with start(*command, **environment) as process:
        said, complained = process.communicate(timeout=60)
    return process.returncode, said, complained


@pytest.fixture
def cluster_file(tmp_path):
    return tmp_path / "fdb.cluster"


def enter(cluster_file, *command, **environment):
    return run(DOCKER / "entrypoint.sh", *command, FDB_CLUSTER_FILE=cluster_file, **environment)


def test_a_container_begins_with_the_cluster_file_it_is_given(cluster_file):
    """Written before the command runs."""
    status, said, _ = enter(cluster_file, "cat", cluster_file, FDB_CLUSTER_FILE_CONTENTS="a:b@127.0.0.1:4500")
    assert (status, said) == (0, "a:b@127.0.0.1:4500\n")


def test_a_cluster_file_that_is_there_is_kept(cluster_file):
    """Its client may know of coordinators that the environment does not."""
    cluster_file.write_text("newer")
    enter(cluster_file, "true", FDB_CLUSTER_FILE_CONTENTS="older")
    assert cluster_file.read_text() == "newer"


def test_without_contents_nothing_is_written(cluster_file):
    """As for the embedded engine."""
    assert enter(cluster_file, "true")[0] == 0
    assert not cluster_file.exists()


def test_the_command_takes_the_entry_points_place(cluster_file):
    """The same process: it gets the signals, and its status is the container's."""
    process = start(DOCKER / "entrypoint.sh", "sh", "-c", "echo $$; exit 7", FDB_CLUSTER_FILE=cluster_file)
    said, _ = process.communicate(timeout=60)
    assert int(said) == process.pid
    assert process.returncode == 7


def test_a_database_that_answers_is_healthy(tmp_path):
    """Status 0, and no word."""
    url = f"embedded:{tmp_path}/data"
    assert run(sys.executable, DOCKER / "healthcheck.py", FDBQUEUE_URL=url) == (0, "", "")


def test_a_database_that_does_not_is_not(tmp_path):
    """Status 1, and the reason in one line."""
    (tmp_path / "file").write_text("")
    status, said, complained = run(
        sys.executable, DOCKER / "healthcheck.py", FDBQUEUE_URL=f"embedded:{tmp_path}/file/data"
    )
    assert (status, said) == (1, "")
    assert len(complained.splitlines()) == 1


FDBCLI = """#!/bin/sh
# Available once it has been configured so often.
echo "$*" >> "{log}"
case "$*" in
    *configure*) echo . >> "{done}" ;;
    *) [ "$(cat "{done}" 2>/dev/null | wc -l)" -ge {needed} ] && echo "The database is available." ;;
esac
"""


def init(tmp_path, needed):
    """The status, and what fdbcli was told to do."""
    fake, log = tmp_path / "fdbcli", tmp_path / "log"
    fake.write_text(FDBCLI.format(log=log, done=tmp_path / "done", needed=needed))
    fake.chmod(0o755)
    given = {"FDBCLI": fake, "FDB_CLUSTER_FILE": tmp_path / "fdb.cluster", "TRIES": 3, "PAUSE_S": 0}
    status, _, _ = run(DOCKER / "init-cluster.sh", **given)
    return status, [line for line in log.read_text().splitlines() if "configure" in line]


def test_a_new_cluster_is_configured_once(tmp_path):
    """Double redundancy, on disk."""
    status, configured = init(tmp_path, needed=1)
    assert status == 0
    assert len(configured) == 1
    assert configured[0].endswith("configure new double ssd")


def test_a_cluster_that_has_a_database_is_left_alone(tmp_path):
    """Nothing is configured at all."""
    assert init(tmp_path, needed=0) == (0, [])


def test_a_cluster_that_never_comes_is_a_failure(tmp_path):
    """What waits for it does not start."""
    status, configured = init(tmp_path, needed=99)
    assert status == 1
    assert len(configured) == 3


def test_the_application_makes_its_queue_and_finds_it_again(tmp_path):
    """The handler of the application takes the payload that the page puts."""
    url = f"embedded:{tmp_path}/data"
    for _ in range(2):
        assert run(sys.executable, DOCKER / "app" / "emails.py", FDBQUEUE_URL=url)[0] == 0
    with fdbqueue.open(url) as db:
        assert fdbqueue.TaskQueue.open(db, "emails").kind == "fifottl"
    handled = "import emails, fdbqueue; emails.handle(fdbqueue.Task('1', 't', {'to': 'ada'}))"
    status, said, _ = run(
        sys.executable, "-c", f"import sys; sys.path.insert(0, {str(DOCKER / 'app')!r}); {handled}"
    )
    assert (status, said) == (0, "to ada: welcome\n")


def test_the_fleet_starts_as_its_services_say(tmp_path):
    """Their commands, in the image's working directory; a task is worked on, and SIGTERM is a good end."""
    services, url = compose()["services"], f"embedded:{tmp_path}/data"
    image = ("env", "--chdir", DOCKER / "app")
    assert run(*image, *services["queues"]["command"], FDBQUEUE_URL=url)[0] == 0
    with fdbqueue.open(url) as db:
        fdbqueue.TaskQueue.open(db, "emails").put(db, {"to": "ada"})
    worker = start(*image, *services["worker"]["command"], FDBQUEUE_URL=url)
    assert worker.stdout.readline() == "to ada: welcome\n"
    worker.terminate()
    _, complained = worker.communicate(timeout=60)
    assert worker.returncode == 0, complained
