"""Writes operate/layout/vectors.json: `python -m tests.system.vectors.writing`, or `make vectors`."""

import json
from contextlib import closing
from typing import Any

from fdbqueue.operate.conformance import escaped
from tests.system.vectors.consumer_scripts import consumer_scripts
from tests.system.vectors.keyed_scripts import keyed_scripts, refusal_scripts, unique_scripts
from tests.system.vectors.script import Applier
from tests.system.vectors.task_scripts import item_scripts, task_scripts
from tests.system.vectors.verbs import LAYOUT, ROOT

MAKERS = (item_scripts, task_scripts, keyed_scripts, unique_scripts, refusal_scripts, consumer_scripts)
FILE = LAYOUT / "vectors.json"


def made() -> dict[str, Any]:
    """The vectors that this code makes, as they are stored."""
    with closing(Applier()) as applier:
        scripts = [script.to_json() for make in MAKERS for script in make(applier)]
    return {"root": escaped(ROOT.key()), "scripts": scripts}


def text_of(vectors: dict[str, Any]) -> str:
    """The file: a step is a line, so a change of the layout shows in the lines of its steps."""
    scripts = ",\n".join(map(_script_text, vectors["scripts"]))
    return f'{{"root": {json.dumps(vectors["root"])}, "scripts": [\n{scripts}\n]}}\n'


def _script_text(script: dict[str, Any]) -> str:
    head = {name: value for name, value in script.items() if name != "steps"}
    steps = ",\n".join(f" {_compact(step)}" for step in script["steps"])
    return f'{_compact(head)[:-1]},"steps":[\n{steps}]}}'


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


if __name__ == "__main__":
    FILE.write_text(text_of(made()))
