"""The place of a ready task in a queue with task keys, for a reader that takes nothing."""

from collections.abc import Callable

from fdbqueue.core.explanation import TaskPlace
from fdbqueue.core.seam import EXACT, Transaction
from fdbqueue.tasks.disciplines.discipline import no_mending, read_index
from fdbqueue.tasks.disciplines.fair import Fair
from fdbqueue.tasks.disciplines.key_counts import IDLE, readable_state
from fdbqueue.tasks.disciplines.keyed import Keyed
from fdbqueue.tasks.records.keys import Record, TaskKeys


def ask_place(
    keyed: Keyed, keys: TaskKeys, tr: Transaction, record: Record, limit: int
) -> Callable[[], Callable[[], TaskPlace]]:
    """Ask for the place of a ready task, by snapshot; its numbers count up to `limit`.

    The reply asks for the keys ahead, and its reply is the place. A damaged state counts as none.
    """
    snapshot, now = tr.snapshot, keyed.ask_now(tr)
    state, fifo = snapshot.get(keyed.state_key(record.key)), keyed.fifo(record.key)
    before = snapshot.get_range(fifo.start, keyed.filed(record), limit=limit, streaming_mode=EXACT)

    def pointers() -> Callable[[], TaskPlace]:
        stored = readable_state(state.value if state.present() else None)
        known, ahead = stored or IDLE, list(read_index(tr, before.to_list(), no_mending))
        if not known.pointer:  # its key is busy: the pointer is the one that the key will get
            known = keyed.begin(known, now())
        at = known.pointer or keyed.point(known, ahead[0] if ahead else record)
        start, stop = keys.ready.start, keys.ready_at(at)
        earlier = snapshot.get_range(start, stop, limit=limit, streaming_mode=EXACT)

        def place() -> TaskPlace:
            round_ = keyed.turn(known, ahead, record, now()) if isinstance(keyed, Fair) else None
            current = None if round_ is None else now()
            return TaskPlace(len(earlier.to_list()), len(ahead), True, keyed.open(known), round_, current)

        return place

    return pointers
