"""Sessions with one, several and no live openers, in one process with a clock that stands still in each call.

Each heartbeat, each end and each sweep is a step of its own, mostly at the microsecond of a deadline. The
answers, the tasks and their holders equal those of a plain model.
"""

from collections.abc import Sequence
from random import Random

from fdbqueue.tasks.queue import TaskQueue
from fdbqueue.testing.cases import Size, workload
from fdbqueue.testing.checkers import no_watch_left_behind
from fdbqueue.testing.simulation import Checker, Client, Simulation
from tests.system.workloads.exact_calls import Caller
from tests.system.workloads.exact_looks import Looks
from tests.system.workloads.exact_model import Model
from tests.system.workloads.exact_sessions_verbs import Openers
from tests.system.workloads.exact_times import earliest, known

NAME = "exact_sessions"
KINDS = ("fifo", "fifottl", "utube", "utubettl", "fair")
VERBS = (
    *("put",) * 4,
    *("take",) * 6,
    *("use_a_lease",) * 3,
    *("by_session",) * 3,
    "by_id",
    "kick",
    *("open",) * 3,
    *("beat",) * 3,
    *("end",) * 3,
    "end_the_dead",
    "busy",
)
RARE = ("release_all", "truncate", "pause")
LOOKED = 0.35
BEHIND = (0, 0, 0, 0, 1, 700_000)


@workload(clients=1, steps=60, never=("die", "stall", "slow_reply", "clock_skew_s"))
def exact_sessions(simulation: Simulation, size: Size) -> Sequence[Checker]:
    random = Random(f"{simulation.seed} exact sessions")
    simulation.limit(
        DUE_BATCH=random.choice((1, 8)),
        VERB_BATCH=random.choice((2, 8)),
        SWEEP_EVERY_S=1e6,
        SWEEPERS_MAX=1,
        SESSIONS_SWEPT_EVERY_S=1e6,
    )
    simulation.outage(1e9, 1.0)  # far away: but now the sessions of a live process may end as dead
    kind = random.choice(KINDS)

    def use(client: Client) -> None:
        caller = Caller(client)
        q, model = TaskQueue.create(client.db, NAME, kind, if_not_exists=True), Model(kind, {})
        model.now = caller.clock.now
        caller.tick()
        process = Process(Openers(caller, q, model))
        for _ in range(size.steps):
            process.step()

    simulation.client(use, "user-0")
    return [no_watch_left_behind]


class Process:
    def __init__(self, user: Openers) -> None:
        self._user, self._caller, self._model, self._random = user, user.caller, user.model, user.random
        self._looks = Looks(user)

    def step(self) -> None:
        self._move()
        random = self._random
        verb = random.choice(RARE) if random.random() < 0.05 else random.choice(VERBS)
        behind = random.choice(BEHIND) if verb in ("open", "beat", "end") else 0
        self._by_a_clock(behind, verb)
        self._model.sweep()
        self._caller.tick()
        self._user.require_holders()
        if random.random() < LOOKED:
            self._model.overdue = [one.id for one in self._user.known.overdue()]
            self._looks.look(swept=True)

    def _by_a_clock(self, behind: int, verb: str) -> None:
        """Let a process do it, the clock of which may be a little behind."""
        model, runtime = self._model, self._caller.client.runtime
        now = model.now
        model.now -= behind
        runtime.hold(model.now)
        self._caller.client.call(NAME, f"step {verb}", now, getattr(self._user, verb))
        model.now = now
        runtime.hold(now)

    def _move(self) -> None:
        """Move the clock: mostly to the deadline of a session or of an opener, or to just before or after."""
        model, random = self._model, self._random
        sessions = self._user.known.known.values()
        ends = [at for one in sessions for at in (one.deadline, *one.openers.values())]
        following = earliest(*(at for at in known([model.next_change(), *ends]) if at >= model.now))
        to = model.now
        if random.random() < 0.35 and following is not None:
            to = following + random.choice((-1, 0, 0, 1))
        elif random.random() < 0.1:
            to += random.choice((1, 500_000, 3_000_000))
        model.now = max(to, model.now)
        self._caller.clock.move_to(model.now)
        model.sweep()
        self._caller.tick()
