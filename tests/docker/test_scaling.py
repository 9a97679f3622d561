"""The objects that scale a fleet name its deployment, its pods and figures of `fdbqueue metrics`."""

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest

import fdbqueue
from fdbqueue.integrations.prometheus import QueueCollector
from tests.docker.files import DOCKER, compose, kubernetes, objects

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
