#!/usr/bin/env python3
"""Exit status 0 if the database answers within four seconds, else 1 and one line that says why."""

import sys

import fdbqueue

TIMEOUT_MS = 4_000


def main() -> int:
    try:
        # Not closed by name: a cluster that is away would keep us longer than the check may take.
        tr = fdbqueue.open().create_transaction()
        tr.options.set_timeout(TIMEOUT_MS)
        tr.get_read_version().wait()
    except Exception as error:  # whatever it is, the container is not well
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
