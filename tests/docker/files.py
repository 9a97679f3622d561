"""The files under docker/, read."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

TREE = Path(__file__).parents[2]
DOCKER = TREE / "docker"


def compose():
    return yaml.safe_load((DOCKER / "compose.yaml").read_text())


def kubernetes():
    """Every object that the kustomization makes."""
    return objects(*yaml.safe_load((DOCKER / "kubernetes" / "kustomization.yaml").read_text())["resources"])


def objects(*files):
    return [
        found for name in files for found in yaml.safe_load_all((DOCKER / "kubernetes" / name).read_text())
    ]


@dataclass
class Stage:
    """One image of the Dockerfile: its base and its instructions."""

    base: str
    name: str
    instructions: list[tuple[str, str]]

    def all(self, word):
        return [text for found, text in self.instructions if found == word]


def dockerfile():
    """Its arguments before the first stage, and its stages by name."""
    text = re.sub(r"\\\n\s*", "", (DOCKER / "Dockerfile").read_text())
    arguments, stages = {}, {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if not line or word == "#":
            continue
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            stages[name] = stage = Stage(base, name, [])
        elif not stages:
            arguments.update([rest.split("=")])
        else:
            stage.instructions.append((word, rest))
    return arguments, stages


def ancestry(stages, name):
    """A stage, and those it is built from."""
    while name in stages:
        yield stages[name]
        name = stages[name].base


def is_exec_form(text):
    try:
        return isinstance(json.loads(text), list)
    except ValueError:
        return False


def is_pinned(image):
    """Whether it names a version, and one that does not move with every release."""
    tag = image.rpartition(":")[2] if ":" in image else ""
    return bool(re.match(r"\d+\.\d+\.\d+", tag))
