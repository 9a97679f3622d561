"""The alert rules and the dashboard use metrics that exist, and each alert has a runbook."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

import fdbqueue
from fdbqueue.integrations.prometheus import QueueCollector, measure
from tests.metrics.support import MONITORING, checked_by_promtool
from tests.page import page

RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD = json.loads((MONITORING / "grafana.json").read_text())
SUFFIXES = re.compile("_(total|bucket)$")


def queries() -> Iterator[str]:
    """The queries of the dashboard, with values for its variables."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$queue", ".*").replace("$__rate_interval", "5m")


@pytest.fixture(scope="module")
def families() -> dict[str, Any]:
    """The metrics of queues and of a process, by name."""
    registry = CollectorRegistry()
    with fdbqueue.open("memory:") as db, measure(registry):
        registry.register(QueueCollector(db))
        return {family.name: family for family in registry.collect()}


@pytest.mark.parametrize("query", [*(rule["expr"] for rule in RULES), *queries()])
def test_each_query_uses_metrics_that_exist(query: str, families: dict[str, Any]) -> None:
    used = {SUFFIXES.sub("", name) for name in re.findall(r"\bfdbqueue_\w+", query)}
    assert used
    assert used <= set(families)


def test_the_rules_fire_when_they_should_and_no_sooner() -> None:
    assert checked_by_promtool(["test", "rules", str(MONITORING / "alerts_test.yml")]) == ""


def test_each_query_of_the_dashboard_can_be_read(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "dashboard.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert checked_by_promtool(["check", "rules", str(file)]) == ""


def test_each_rule_has_a_test_in_which_it_fires() -> None:
    tests = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    tried = [one for test in tests for one in test["alert_rule_test"]]
    fires = {one["alertname"] for one in tried if one["exp_alerts"]}
    rests = {one["alertname"] for one in tried if not one["exp_alerts"]}
    assert fires == rests == {rule["alert"] for rule in RULES}


def test_each_alert_has_a_runbook() -> None:
    headings = re.findall(r"^### (Fdbqueue\w+)$", page("docs/operations.md"), re.MULTILINE)
    assert headings == [rule["alert"] for rule in RULES]
    for rule in RULES:
        assert rule["annotations"]["runbook"] == f"docs/operations.md#{rule['alert'].lower()}"


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in DASHBOARD["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_each_metric_is_on_its_page(families: dict[str, Any]) -> None:
    told = set(re.findall(r"`(fdbqueue_\w+)`", page("docs/metrics.md") + page("docs/observing.md")))
    assert {SUFFIXES.sub("", name) for name in told} == set(families)
