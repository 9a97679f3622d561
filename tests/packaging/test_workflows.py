"""The workflows of a forge are valid, and do nothing that a make target does not do."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.packaging.building import ROOT

FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FILES = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-issue-forms": [FORGE / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "feature.yml")],
    "vendor.github-issue-config": [FORGE / "ISSUE_TEMPLATE" / "config.yml"],
    "vendor.dependabot": [FORGE / "dependabot.yml"],
}
TARGETS = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
MATRIX = re.compile(r"\$\{\{ matrix\.(\w+) \}\}")


def commands(workflow: Path) -> list[str]:
    """Each command of a workflow, once for each value of its matrix."""
    jobs: dict[str, Any] = yaml.safe_load(workflow.read_text())["jobs"]
    found = []
    for job in jobs.values():
        for run in (step["run"] for step in job["steps"] if "run" in step):
            values = [job["strategy"]["matrix"][name] for name in MATRIX.findall(run)]
            found += [MATRIX.sub(value, run) for value in values[0]] if values else [run]
    return found


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_make_targets_only(workflow: Path) -> None:
    for command in commands(workflow):
        program, *words = command.split()
        targets = [word for word in words if "=" not in word]
        assert program == "make", command
        assert targets, command
        assert set(targets) <= TARGETS, command


@pytest.mark.parametrize("schema", FILES)
def test_the_files_of_the_forge_fit_its_schemas(schema: str) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *FILES[schema]]
    done = subprocess.run(check, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_audit_of_the_workflows_finds_nothing() -> None:
    audit = [Path(sys.executable).parent / "zizmor", "--offline", "--no-progress", FORGE]
    done = subprocess.run(audit, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
