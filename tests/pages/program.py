"""The process of a Python program on a page: it reads its blocks, a line of JSON for each.

A block runs in the module `__main__`, as a file would, so that types and tracebacks are those of the page.
"""

import json
import os
import sys
import types


def main() -> None:
    answer_to = int(sys.argv[1])
    os.set_inheritable(answer_to, False)
    program = types.ModuleType("__main__")
    sys.modules["__main__"] = program
    sys.path[0] = ""
    for line in sys.stdin:
        step = json.loads(line)
        for descriptor, name in ((1, "output"), (2, "errors")):
            with open(step[name], "w") as file:
                os.dup2(file.fileno(), descriptor)
        exec(compile(step["text"], step["page"], "exec"), vars(program))
        sys.stdout.flush()
        os.write(answer_to, b"done")


if __name__ == "__main__":
    main()
