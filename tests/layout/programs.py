"""Programs for `fdbqueue conformance`: `python -m tests.layout.programs KIND_OF_MISTAKE`."""

import json
import sys
from typing import Any

BEHAVES = {
    "right": lambda told: told,
    "one key too many": lambda told: told | {"keys": told.get("keys", {}) | {"%00": "x"}},
    "other conflicts": lambda told: told | ({"reads": [["a", "b"]]} if "reads" in told else {}),
    "other result": lambda told: told | {"returns": ["other"]},
    "other id": lambda told: told | {"id": 0},
    "no shape": lambda told: {"id": told["id"], "keys": [1]},
    "knows nothing": lambda told: {"id": told["id"], "unsupported": True},
    "does nothing": lambda told: {"id": told["id"], "mutations": []},
    "fails": lambda told: {"id": told["id"], "mutations": [], "returns": {"error": "Failed"}},
    "fails late": lambda told: {
        "id": told["id"],
        "mutations": [["set", "key", "value"]],
        "returns": {"error": "Failed"},
    },
}


def main() -> None:
    mistake = sys.argv[1]
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        if mistake == "ends":
            sys.exit(7)
        if mistake == "hangs":
            continue
        while mistake == "floods":
            sys.stdout.write("x" * 1_000_000)
        if mistake == "garbage":
            print("hello", flush=True)
            continue
        print(json.dumps(BEHAVES[mistake](answer_to(mistake, asked))), flush=True)


def answer_to(mistake: str, asked: dict[str, Any]) -> dict[str, Any]:
    if mistake not in ("right", "one key too many", "other conflicts", "other result"):
        return {"id": asked["id"]}
    from examples.layout_program import answer  # it costs most of the start of this program

    return answer(asked)


if __name__ == "__main__":
    main()
