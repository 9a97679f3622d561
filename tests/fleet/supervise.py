"""A program that runs a fleet: `supervise.py URL OPTIONS`, options as JSON. Prints the status as JSON.

With the option `forks`, it forks a child while a task runs. The child "stays" until a signal ends it, and its
id is printed; or it "returns" into the fleet, and its exit status is printed.
"""

import dataclasses
import json
import os
import sys
import time

from fdb.subspace_impl import Subspace

from fdbqueue import FdbQueueError, Fleet


def main(url, options):
    try:
        settings = json.loads(options)
        forks = settings.pop("forks", None)
        fleet = Fleet(url, **settings | {"root": Subspace((), bytes.fromhex(settings["root"]))})
        ticks, forked = [], []

        def tick(status):
            state = [
                (process.process_id, process.state, len(process.running)) for process in status.processes
            ]
            if ticks != state:
                ticks[:] = state
                print(json.dumps({"processes": state}), flush=True)
            if forks and status.running and not forked:
                forked.append(os.fork())
                while not forked[0] and forks == "stays":
                    time.sleep(60)
                if forked[0]:
                    told = os.waitpid(forked[0], 0)[1] if forks == "returns" else forked[0]
                    print(json.dumps({"forked": told, "processes": state}), flush=True)

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
