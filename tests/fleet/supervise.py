"""A program that runs a fleet: `supervise.py URL OPTIONS`, options as JSON. Prints the status as JSON."""

import dataclasses
import json
import sys

from fdb.subspace_impl import Subspace

from fdbqueue import FdbQueueError, Fleet


def main(url, options):
    try:
        settings = json.loads(options)
        fleet = Fleet(url, **settings | {"root": Subspace((), bytes.fromhex(settings["root"]))})
        ticks = []

        def tick(status):
            state = [
                (process.process_id, process.state, len(process.running)) for process in status.processes
            ]
            if ticks != state:
                ticks[:] = state
                print(json.dumps({"processes": state}), flush=True)

        fleet.run(tick)
    except FdbQueueError as error:
        print(json.dumps({"refused": type(error).__name__, "message": str(error)}), flush=True)
        return 2
    status = fleet.status()
    ended = {
        "ended": dataclasses.asdict(status.tally),
        "restarts": status.restarts,
        "recycled": status.recycled,
    }
    print(json.dumps(ended), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
