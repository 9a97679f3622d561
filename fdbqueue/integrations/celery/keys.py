"""Keys of the Celery room: the only file that builds or parses them (root_keys.py knows their shapes).

Keys are below R["celery"], of the default root. The comment of a column has its parts and its value, bytes,
and behind the semicolon its readers. Results lie elsewhere (common/results.py).
"""

from fdbqueue.core.columns import Table
from fdbqueue.core.root_keys import CELERY, DEFAULT_ROOT

C = Table()
EXCHANGE = C.packed(0, str)
BINDING = C.packed(0, str, str, str)  # exchange, routing key, queue: owner; each publish to the exchange
OWNED = C.packed(
    1, str
)  # queue: owner, a session, or empty for a queue that stays; declarations of such queues
PARTS = C.packed(2, str)
PART = C.packed(2, str, int, str)  # chord, index, part: empty; the return of that part
COUNT = C.packed(3, str)  # chord: little-endian; each return of a part
SIZE = C.packed(4, str)  # chord: little-endian; each return of a part
ADDED = C.packed(4, str, str)  # chord, part: empty; the addition of that part
CHORD_END = C.packed(5, int, str)  # ends_us, chord: empty; the start of each chord

_PREFIX = DEFAULT_ROOT.pack((CELERY,))

binding, bindings, all_bindings = BINDING.key(_PREFIX), EXCHANGE.under(_PREFIX), BINDING.all(_PREFIX)
binding_of, bound_queue_of = BINDING.parse(_PREFIX), BINDING.last(_PREFIX)
owned, all_owned, owned_of = OWNED.key(_PREFIX), OWNED.all(_PREFIX), OWNED.first(_PREFIX)
part, parts, part_of = PART.key(_PREFIX), PARTS.under(_PREFIX), PART.last(_PREFIX)
count, size = COUNT.key(_PREFIX), SIZE.key(_PREFIX)
added, all_added = ADDED.key(_PREFIX), SIZE.under(_PREFIX)
chord_end, chord_end_of = CHORD_END.key(_PREFIX), CHORD_END.last(_PREFIX)
chord_ends_until = CHORD_END.until(_PREFIX)
