"""Every bound of the project in one place, the unit in each name.

The first block is FoundationDB's own (https://apple.github.io/foundationdb/known-limitations.html);
both engines enforce it. The second block is ours, and answers to the first.
"""

KEY_BYTES_MAX = 10_000
VALUE_BYTES_MAX = 100_000
TRANSACTION_BYTES_MAX = 10_000_000
TRANSACTION_SIZE_LIMIT_MIN_BYTES = 32
TRANSACTION_AGE_MAX_S = 5.0
WATCHES_MAX = 10_000
WATCHES_LIMIT_MAX = 1_000_000

# Options of a transaction that are numbers (a timeout in milliseconds, a number of retries) have 32 bits.
OPTION_MAX = 2**31 - 1

RETRY_DELAY_FIRST_S = 0.01
RETRY_DELAY_MAX_S = 1.0
RETRY_DELAY_GROWTH = 2.0

# A payload above one piece is split; ten thousand pieces would not fit one transaction anyway.
PAYLOAD_PIECE_BYTES_MAX = 90_000
PAYLOAD_BYTES_MAX = 8_000_000
# Containers in containers: the stacks of put and taker have room for so many, however deep they are.
PAYLOAD_DEPTH_MAX = 200
# FoundationDB's advice: a transaction above 1 MB is a design question.
BATCH_BYTES_MAX = 1_000_000
BATCH_ITEMS_MAX = 1_000

RANDOM_SUFFIX_BYTES = 12
# Two clocks of one fleet may differ by this much without breaking an invariant's liveness half.
CLOCK_SKEW_S = 5.0

# The staged request set (docs/design.md, section 7).
SERVE_MAX = 50
SERVE_BYTES_MAX = 500_000
# Whoever looks at the line asks for as many items as it expects to be for those before it, and so many more.
OFFERS_TO_SPARE = 4
# Results that are smaller come with the notice of them: one key to read, write and clear instead of two.
NOTICE_BYTES_MAX = 8_000
REQUEST_DEADLINE_S = 10.0
# A request behind others looks at the line when it renews itself, after half of this to all of it: watches
# wake it. Looks every second or two of 200 waiting sessions were 22 transactions for each put.
REQUEST_RENEW_S = 4.0
# The first request looks oftener: it is the one that finds an item of which no watch has told.
LOOK_EVERY_S = 2.0
# After this many lost races for the head a take stands in the line.
PLAIN_ATTEMPTS_MAX = 2
# Where so many stood in the line, a process goes straight to it for a while. (With fewer, the line's two
# commits cost more than the races that they save: two processes on one directory make 1,010 takes a second
# with races, 660 in the line; four 838 and 1,110.)
CROWD_MIN = 3
STAGED_HINT_S = 0.5
# A call that may not wait for an item still waits this long for those who have a share and have not taken it:
# they are about to, and would meet whoever serves them. In seconds, or in commits of its own: the longer.
SERVE_PATIENCE_S = 0.05
SERVE_PATIENCE_COMMITS = 8
# Who has stood in the line for so long and has not taken its share, sleeps, or is slow or dead: whoever comes
# by serves it. So nobody keeps what comes next of a key, or a tenant's turn, from others for longer.
SHARE_HELD_S = 0.25
# While there is something to take, a process looks no oftener for what has come due in the line.
LINE_TIDIED_EVERY_S = 0.5
RESULTS_RETURNED_MAX = 10

# Calls of one process that share transactions: the leader waits for those of the last round to come back, for
# this part of the time that it took. (Where that is less than the least, waiting costs more than it brings.)
GATHER_SHARE = 0.15
GATHER_MAX_S = 0.001
GATHER_MIN_S = 0.0001

# Locks and events refuse to wait for as long as a caller may ask.
PATIENCE_MAX_S = 3_600.0

# An event of another kind than the runtime's cannot call back: while a call waits, it is looked at so often.
STOP_LOOK_S = 0.05

# Receipts: a slot this old belongs to a process that died without closing.
RECEIPT_STALE_S = 86_400.0
RECEIPTS_SWEPT_MAX = 100
CLOSE_TIMEOUT_S = 5.0

# A handle remembers so many tasks or items that its process cannot decode, and passes over them.
PASSED_OVER_MAX = 100
# So many stored values of one payload are set aside with it: the largest payload, and some to spare.
ASIDE_PARTS_MAX = 100
# Where the key of a damaged record is unknown: so many keys of each state are searched for the task.
SEARCHED_MAX = 1_000

QUEUE_NAME_BYTES_MAX = 500
# As the path of a file in Linux.
URL_BYTES_MAX = 4_096
# Of a root or a subspace: keys below it have room for a queue's name and two keys of tasks.
SUBSPACE_BYTES_MAX = 5_000
# A codec's name is stored with each queue that uses it.
CODEC_NAME_BYTES_MAX = 100
# Making the decoder of a type costs more than opening a queue.
CODECS_CACHED_MAX = 256
QUEUES_LISTED_MAX = 1_000

# Task queues. A span of this length or more is for ever.
SPAN_MAX_S = 365 * 86_400 * 100
PRIORITY_MAX = 2**32 - 1
# A payload up to this size is part of its task's record, which is written with each change, and twice while
# the task is ready: larger ones cost less in a key of their own, which is a second round trip for a take.
RECORD_PAYLOAD_BYTES_MAX = 256
# The key of a task is part of three of its database keys.
TASK_KEY_BYTES_MAX = 1_000
TASK_KEY_DEPTH_MAX = 100
RUN_ID_BYTES_MAX = 100
KEY_CONCURRENCY_MAX = 1_000_000
SHARES_MAX = 1_000_000_000
WEIGHTS_MAX = 1_000
# A key enters the index of busy keys with twice two to this power of tasks waiting, it leaves with half of
# that. (Keys with few tasks, and there may be millions, never cost an entry.)
KEY_LEVEL_MIN = 5
# Among so many keys, of those that have any tasks and of the busiest, key_statistics looks for the first.
KEYS_LOOKED_AT_MAX = 500
# How many due, expired or dead ones a call puts in order on its way, and a verb over many in one transaction.
DUE_BATCH = 50
# Statistics count the delayed tasks that are due among this many timers that have run out.
DUE_COUNTED_MAX = 1_000
# In one transaction a call puts so many batches in order before it says that there is nothing, or no room.
TIDY_ROUNDS_MAX = 20
VERB_BATCH = 200
# So many acks of one process in a queue go each by itself, more of them together: with so few little is
# saved. A batch that has lost so many conflicts goes apart again.
ACKS_APART_MAX = 4
ATTEMPTS_TOGETHER_MAX = 2
# Puts into a bounded queue spread over so many conflict keys (tasks/capacity.py).
SEATS_MAX = 4_096

# What is kept of a task's failures: the last so many attempts, each with so much text (FDB advises values
# below 10 kB).
FAILURES_KEPT = 10
FAILURE_MESSAGE_BYTES_MAX = 1_000
FAILURE_DETAIL_BYTES_MAX = 8_000

# Workers. A transaction that ends with an ack leaves a fifth, a tenth of what FoundationDB allows.
EFFECT_MAX_S = 4.0
EFFECT_BYTES_MAX = 9_000_000
# A worker with several queues leaves one that was empty alone for so long while others have tasks.
EMPTY_QUEUE_LOOK_S = 0.2
WORKER_WAIT_S = 30.0
BEAT_AGAIN_S = 0.5
# How closely a worker knows whether it has been running; how many standstills and silences it remembers.
PULSE_S = 0.25
LATE_MIN_S = 0.05
SPELLS_KEPT = 1_000
SILENCE_MIN_S = 0.1
AMENDS_PER_BEAT = 20
SUSPECT_DELAY_S = 0.5
AWAY_FIRST_S = 0.5
AWAY_MAX_S = 30.0
PRESENCE_EVERY_S = 2.0
RUNNING_SHOWN = 50
# A value of FoundationDB has 100,000 bytes: so many for the names of queues, as many for what is running.
PRESENCE_PART_BYTES_MAX = 40_000
WORKERS_LISTED_MAX = 1_000
THREADS_MAX = 1_000
PROCESSES_MAX = 1_000
# The session of a fleet's supervisor: a database may be away for this long, and the counts of the run stay.
# A row that a killed supervisor has left goes after this time.
RUN_TTR_S = 3_600.0
RUN_READ_EVERY_S = 0.5
RUN_READ_TIMEOUT_S = 0.3
# A read that was not answered is not repeated at once: the supervisor has processes to look after.
RUN_READ_AGAIN_S = 5.0
WEIGHT_MAX = 1_000_000

SESSION_TTR_S = 30.0
BEATS_PER_TTR = 3
# A heartbeat reads so many openers of a shared session; those of more processes are not looked for.
OPENERS_READ_MAX = 1_000
SWEEP_EVERY_S = 0.2
SESSIONS_SWEPT_EVERY_S = 0.5
# The processes under one root share the sweeping: each sweeps the less often, the more of them it counts.
SWEEPERS_MAX = 10
SWEEPERS_COUNTED_EVERY_S = 5.0
DEAD_SESSIONS_MAX = 100
# A process remembers so many services of queues in each of two generations: some kilobytes each.
SERVICES_REMEMBERED = 500
# What fails over and over in the background is told of no oftener.
TROUBLE_TOLD_EVERY_S = 60.0
# So many different troubles are known at a time: the one met first is forgotten, and would be told of anew.
TROUBLES_KEPT = 100
QUEUES_PER_TRANSACTION = 50
# Persistent queues: join() looks no oftener.
JOIN_PAUSE_S = 0.02
