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
# Nested containers: even a deep stack of a putting or taking thread has room for this number.
PAYLOAD_DEPTH_MAX = 200
# FoundationDB's advice: a transaction above 1 MB is a design question.
BATCH_BYTES_MAX = 1_000_000
BATCH_ITEMS_MAX = 1_000
# Items that are written in a direct transaction, for which all other commits of a directory wait.
DIRECT_ITEMS_MAX = 20
# Calls that take ordinary transactions after one of their kind could not end in a direct one.
DIRECT_PAUSE_CALLS = 100
# Records of the items that one take or one serving changes; a record with a long task key is written seven
# times. Bytes of the holders that one take writes under limits.
BATCH_RECORDS_BYTES_MAX = 1_000_000
BATCH_HOLDERS_BYTES_MAX = 1_000_000
# Bytes of values that one take cannot read, and sets aside, but for the first ones.
UNREADABLE_BYTES_MAX = 8_000_000
# A put of several tasks, with all that it writes: a tenth of a transaction is left to the caller.
PUT_BYTES_MAX = 9_000_000
# One step of an import. A task has some 300 bytes of keys besides its payload.
IMPORT_BATCH_ITEMS = 200
IMPORT_BATCH_BYTES = 500_000
# One batch of an export: the keys that one transaction reads of a range, and their bytes; one task, item or
# element may have more. The longest line is a task with the largest payload, failures and steps, in base64.
EXPORT_BATCH_ROWS = 200
EXPORT_BATCH_BYTES = 500_000
EXPORT_LINE_BYTES_MAX = 64_000_000

RANDOM_SUFFIX_BYTES = 12
# The largest difference of two clocks in a fleet for which the invariants of docs/design.md hold.
CLOCK_SKEW_S = 5.0
# The lag of a remote region that `doctor` warns of. FoundationDB wants less than five million versions.
REGION_LAG_S = 5.0

# The waiting line (docs/protocols.md).
SERVE_MAX = 50
SERVE_BYTES_MAX = 500_000
# Items read beyond the estimated number that belongs to requests ahead.
OFFERS_TO_SPARE = 4
# Results up to this size are part of their notice: one key to read, write and clear instead of two.
NOTICE_BYTES_MAX = 8_000
REQUEST_DEADLINE_S = 10.0
# A request behind others looks at the line when it renews itself, after half of this to all of it: watches
# wake it. Looks every second or two of 200 waiting sessions were 22 transactions for each put.
REQUEST_RENEW_S = 4.0
# The first request looks more often: it finds the items for which no watch fires.
LOOK_EVERY_S = 2.0
# After this number of lost races for the first item, a take registers in the line.
PLAIN_ATTEMPTS_MAX = 2
# After it has seen this number of requests, a process goes straight to the line for STAGED_HINT_S. (With
# fewer, the line's two commits cost more than the races that they save: two processes on one directory make
# 1,010 takes a second with races, 660 in the line; four 838 and 1,110.)
CROWD_MIN, STAGED_HINT_S = 3, 0.5
# A take that may overtake registers after this number of lost races in a row. After the first of them it
# leaves up to OVERTAKE_FIRST items behind.
OVERTAKING_ATTEMPTS_MAX, OVERTAKE_FIRST = 8, 16
# The largest `overtake` of a call, and that of a worker by default.
OVERTAKE_MAX, WORKER_OVERTAKE = 1_000, 128
# Bytes of items that such a take reads, but for those that it takes.
OVERTAKEN_BYTES_MAX = 100_000
# A call without a timeout waits this time, or this number of its commits if that is longer, for requests
# ahead that have a share. They are about to take it, and would conflict with a call that served them.
SERVE_PATIENCE_S, SERVE_PATIENCE_COMMITS = 0.05, 8
# A request that is older than this and has not taken its share is idle (asleep, slow or dead), and other
# requests serve it. Otherwise it would keep back the later items of a key, or the turn of a tenant.
SHARE_HELD_S = 0.25
# In a directory, a request that sleeps asks the kernel this often if the process of the one ahead is gone.
DEATH_SEEN_S = 0.5
# On a cluster, a request renews itself this often while fewer than SERVE_MAX stand in the line, as it costs.
# Without a change for SILENT_S, or SERVE_PATIENCE_COMMITS commits, it has no share.
LIFE_SIGN_S, SILENT_S = 0.7, 1.4
# The shortest time between two looks of a process for overdue results, while it finds items.
LINE_TIDIED_EVERY_S = 0.5
RESULTS_RETURNED_MAX = 10
# Their items: with a long task key, a unique key and headers, one costs a transaction some 26 kB.
RETURNED_ITEMS_MAX = 250

# Calls of one process that share transactions: the leader waits for the callers of the last batch, for
# this part of the time that the batch took. (Below GATHER_MIN_S a wait costs more than it saves.)
GATHER_SHARE = 0.15
GATHER_MAX_S = 0.001
GATHER_MIN_S = 0.0001

# Locks and events refuse longer waits, which callers may ask for.
PATIENCE_MAX_S = 3_600.0
# A `stop` event of a class that cannot call back is polled by a waiting call at this interval.
STOP_LOOK_S = 0.05

# Receipts: a slot this old belongs to a process that died without closing.
RECEIPT_STALE_S = 86_400.0
RECEIPTS_SWEPT_MAX = 100
CLOSE_TIMEOUT_S = 5.0
# A cluster measures itself for its status. While batch priority starves, that probe gives up after 5 s.
STATUS_TIMEOUT_S = 10.0
# The longest waits for a read version at batch priority (core/pace.py): of upkeep and looks, and of work that
# may be late. An idle cluster gives one within milliseconds.
BATCH_PATIENCE_S, BACKGROUND_PATIENCE_S = 0.5, 5.0
# Tags of one transaction; FoundationDB's bounds.
TAGS_MAX, TAG_BYTES_MAX = 5, 16
# A cancelled call of fdbqueue.aio that cannot end its transaction finishes alone after this time.
CANCEL_PATIENCE_S = 5.0
# The client library connects anew each second to servers of another release.
CLIENT_STATUS_LOOKS = 12
CLIENT_STATUS_DELAY_S = 0.1
# Tasks or items that its process cannot decode, which a handle remembers and passes over.
PASSED_OVER_MAX = 100
# Stored values that are set aside with one payload: those of the largest payload, and some to spare.
ASIDE_PARTS_MAX = 100
# Index entries of each state that are searched for a task with a damaged record.
SEARCHED_MAX = 1_000
# An explanation counts tasks, keys and calls up to this number, names this number of holders of a key, and
# looks for live workers among this number of presences, which may have kilobytes each.
EXPLAINED_MAX = 1_000
EXPLAINED_HOLDERS = 10
EXPLAINED_WORKERS = 100
EXPLAINED_RUNS = 3
# Figures: queues that one snapshot reads; task keys that are told of a queue; counters of task keys that are
# read of a queue, which are all of them in a queue with fewer.
FIGURES_QUEUES = 200
FIGURES_KEYS_MAX = 50
FIGURES_KEYS_READ = 100
# Of a root, an overview reads this number of limits, of schedules, and of rows of groups, three or four each.
FIGURES_LIMITS = 100
FIGURES_SCHEDULES = 100
FIGURES_GROUP_ROWS = 1_000
HELD_GROUPS_TOLD = 5
# Limits of tasks (docs/limits.md). A truncate reads the holders of its queue, at most one for each slot.
SLOTS_MAX = 10_000
LIMITS_PER_QUEUE_MAX = 8
LIMIT_HOLDERS_SHOWN = 10
# The names of all limits that tasks of a queue may name.
TASK_LIMITS_BYTES_MAX = 1_000
# Lanes of tasks that name limits: a take reads LANES_READ_MAX together, at least LANE_TASKS_FIRST tasks of
# each. If more than LANES_KEPT are open, takes close empty ones.
LANES_READ_MAX = 16
LANE_TASKS_FIRST = 4
LANES_KEPT = 8
# Of limits that count each key apart: lanes of a key that one transaction opens or parks, and their bytes, as
# it may do so for VERB_BATCH keys; the bytes of a lane without its key, and the places that have the key.
LANES_TURNED = 16
LANES_BYTES_TURNED = 16_000
LANE_BYTES, LANE_KEY_COPIES = 1_250, 20
# Of these limits, too: keys, and rows of keys, that a sweep looks at; exhausted keys that a take passes
# before it leaves the others to a sweep; the starts for which one with a key counts, as it may park lanes;
# bytes of a key for which it counts once more, as it writes the key in many places; keys that `verify` adds
# up in one transaction; keys of a limit that `doctor` looks at, and exhausted ones among them.
KEYS_SETTLED = 8
KEY_ROWS_WALKED = 50
KEYS_PASSED = 64
STARTS_OF_A_KEYED_ONE = 5
KEY_BYTES_OF_A_START = 50
VERIFIED_LIMIT_KEYS_MAX = 10_000
DIAGNOSED_LIMIT_KEYS_MAX = 1_000
DIAGNOSED_FULL_KEYS_MAX = 20
DIAGNOSED_FULL_QUEUES_MAX = 10
LIMITS_READ_TOGETHER = 50
RATE_SPAN_MAX_S = 31_536_000.0
STARTS_PER_S_MAX = 1_000_000
BURST_MAX = 1_000_000
# A burst that is not given is this part of the rate.
BURST_SHARE = 10
# The tokens of a burst that a cell has at least, if the limit has several cells.
CELL_TOKENS_MIN = 8
# Metrics: a scrape of Prometheus gives up after 10 s by default, so a look gives up earlier. A scrape waits
# for the scrape before it.
LOOK_TIMEOUT_S = 5.0
SCRAPE_WAIT_S = 4.0
READY_TIMEOUT_S = 2.0
# A client of the metrics server that sends or reads nothing for this time is left.
HTTP_SILENCE_S = 10.0
HTTP_CONNECTIONS_MAX = 32
# Dashboard: one look at all queues for all listeners; points of a sparkline, five minutes of them.
DASHBOARD_LOOK_EVERY_S = 2.0
POINTS_KEPT = 150
# The rates of a backlog are those of this time.
PACE_S = 300.0
# Threads that wait for the database at a time, and streams of events; a stream ends after STREAM_S, and its
# browser opens another.
DASHBOARD_THREADS = 8
STREAMS_MAX = 100
STREAM_S = 600.0
# A login ends after this time. A token is compared with guesses, so it must be long.
LOGIN_S = 43_200.0
TOKEN_LENGTH_MIN = 16
# Rows of a page, and bytes of a form. A payload is shown up to SHOWN_PAYLOAD_LENGTH characters, and can be
# edited up to EDITED_BYTES_MAX.
ROWS_SHOWN = 50
FORM_BYTES_MAX = 1_000_000
FORM_FIELDS_MAX = 80
SHOWN_PAYLOAD_LENGTH = 20_000
EDITED_BYTES_MAX = 100_000
# Tasks that one click kicks at most, in transactions of VERB_BATCH.
KICKED_MAX = 10_000

# A verification reads this number of keys in one slice, and of the rows that one of them names. It reads
# this number of slices in one transaction, and none after VERIFIED_S. It counts rows in one transaction for
# COUNTED_S, and looks at the clock after COUNTED_ROWS. It stops after FINDINGS_MAX contradictions.
SLICE_KEYS_MAX = 1_000
SLICES_TOGETHER = 8
VERIFIED_S = 2.0
VERIFIED_ROWS_MAX = 10_000
COUNTED_S = 2.0
COUNTED_ROWS = 500
FINDINGS_MAX = 1_000
# Task keys with counters that are compared with the tasks: some 200 bytes of memory each.
VERIFIED_TASK_KEYS_MAX = 500_000

# A diagnosis: the transactions that it times, the sessions whose clocks it compares, and the bounds above
# which it warns. (One storage team ends near HOT_TASKS_PER_S: docs/scaling.md.)
PROBES = 9
CLOCKS_MAX = 200
DOCTOR_WATCH_S_MAX = 3600.0  # between its two looks: nothing else ends that wait
READ_VERSION_LATE_S = 0.1
COMMIT_LATE_S = 0.5
LEADER_STANDS_S = 2.0  # in a directory, one process commits at a time: this is longer than a slow commit
CLOCK_WARNING_S = 1.0
# Versions of a cluster jump by 100 s at a recovery: an older heartbeat tells no time by them. They lag by up
# to a second, and may run a tenth slower or faster.
AGE_TOLD_MAX_S, AGE_LAG_S, AGE_DRIFT = 60.0, 1.0, 0.1
OVERDUE_WARNING_S = 5.0
SWEEP_LAG_WARNING_S = 5.0
# A task hangs, as it seems, if it has run that many times as long as its class usually does, and that many
# seconds. All threads of a queue have the same tasks for that time before a check tells it.
HUNG_TIMES, HUNG_MIN_S, HUNG_SHOWN = 10, 60.0, 10
FULL_WARNING_S = 300.0
KEY_WAITS_WARNING_S = 900.0
# The same, while another key gets nearly all takes.
STARVED_WARNING_S = 60.0
HOT_TASKS_PER_S = 1_000
CONFLICTS_WARNING_PER_S = 50.0
SPARSE_PARTITIONS = 4  # times the number that the rate of a queue needs
OPEN_FILES_SHARE_MAX = 0.8
DISK_SHARE_MIN = 0.05
VERSIONS_BEHIND_WARNING = 10_000
JOURNAL_BYTES_WARNING = 64 << 20

QUEUE_NAME_BYTES_MAX = 500
# As the path of a file in Linux.
URL_BYTES_MAX = 4_096
# Of a root or a subspace: keys below it have room for a queue's name and two task keys.
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
# A trace context lies in the record of its task, which the index of ready tasks copies. A traceparent and
# the longest tracestate that W3C asks for have 600 bytes.
TRACE_BYTES_MAX = 1_000
# So do the headers of a task. A batch of a thousand tasks with such headers still fits into one transaction.
HEADERS_BYTES_MAX = 1_000
# The text of a hand-off is a part of the record, too.
HANDED_TO_BYTES_MAX = 256
# The steps of a task that are done lie beside its record, and move with it to another partition in one
# transaction. The number of bytes of a name has one byte of a key; a result is one value.
STEPS_MAX = 100
STEPS_BYTES_MAX = 1_000_000
STEP_NAME_BYTES_MAX = 200
STEP_BYTES_MAX = 90_000
# Each queue of a process has metrics of its own, some thirty lines of a scrape for each kind of call.
QUEUES_LABELLED_MAX = 100
# A task key is part of three database keys of its task.
TASK_KEY_BYTES_MAX = 1_000
TASK_KEY_DEPTH_MAX = 100
# A put writes a task key, or a unique key, this number of times, with the ranges of its conflicts. Puts that
# share a transaction count these bytes: a thousand with long keys would not fit.
TASK_KEY_COPIES = 20
# A take writes it in this number of places more than the record.
OFFERED_KEY_COPIES = 2
# The copies of each further task of one put with the same task key, and the bytes of a task beside its task
# key, headers, trace and longer payload.
BUSY_KEY_COPIES, TASK_BYTES = 8, 1_200
UNIQUE_KEY_COPIES = 11
# The copies of headers, groups and names of limits: in the record, and in the key of a lane.
EXTRA_COPIES = 2
RUN_ID_BYTES_MAX = 100
KEY_CONCURRENCY_MAX = 1_000_000
# Units of quota: the cost of a task, or the weight of a task key.
UNITS_MAX = 1_000_000_000
# A task key that pays by time: the unit, the most that one lease costs, the most that one take pays, and the
# time between two looks for keys that owe nothing any more.
CHARGE_UNIT_S, CHARGED_MAX_S, PAID_MAX_S, DEBTS_SWEPT_EVERY_S = 0.001, 86_400.0, 3_600.0, 5.0
WEIGHTS_MAX = 1_000
# A task key enters the index of busy keys with 2 ** (this + 1) ready tasks, and leaves it with half of
# that. (Millions of keys with few tasks cost no entry.)
KEY_LEVEL_MIN = 5
# Task keys that key_statistics reads from the counters, and from the index of busy keys.
KEYS_LOOKED_AT_MAX = 500
# Taken tasks among which noisy task keys are found. Such a key has more than that share of them, and more
# than that many times an equal share.
RUNS_LOOKED_AT_MAX = 1_000
NOISY_SHARE, NOISY_TIMES = 0.1, 1.5
# A key takes nearly all with that share. Fewer taken tasks of a key do not tell that they run long.
NEARLY_ALL, NOISY_TAKEN_MIN = 0.9, 5
# Weights of a queue that the cure of one names.
WEIGHTS_TOLD_MAX = 10
# Changes of options that the history of a queue keeps.
ALTERATIONS_MAX = 20
# Lines that the audit of a root keeps, and the oldest ones that an action clears at once when there are more.
AUDIT_LINES = 1_000
AUDIT_CLEARED = 50
# Lines of the page of the audit.
AUDIT_SHOWN = 200
# The trash of a queue: how long a purge lies there; its tasks, their bytes, and its purges. The oldest ones
# make room for a later one. A restore reads TRASH_ROWS pieces at once: more than the largest task has.
TRASH_KEPT_S = 86_400
TRASH_TASKS_MAX, TRASH_BYTES_MAX, TRASH_PURGES_MAX, TRASH_ROWS = 100_000, 200_000_000, 100, 200
# Characters of a value before or after an action, and of the name of who acts.
AUDIT_TEXT_LENGTH = 200
# Tasks that one sweep moves (due, expired, lease over); VERB_BATCH: tasks that a verb over many changes in
# one transaction.
DUE_BATCH = 50
# Statistics count the delayed tasks that are due among this many timers that have run out.
DUE_COUNTED_MAX = 1_000
# Batches that a call given a transaction sweeps before it answers "nothing" or "no room".
TIDY_ROUNDS_MAX = 20
VERB_BATCH = 200
# A change of waiting tasks looks at this number of them in one transaction; a call with a filter of data
# looks at the second number. A dry run shows the third.
LOOKED_THROUGH, SEARCHED_TASKS, EXAMPLES = 500, 10_000, 10
# After ATTEMPTS_TOGETHER_MAX conflicts the acks of a batch run alone.
ATTEMPTS_TOGETHER_MAX = 2
# Takes, in equal parts of its time, for a batch that waits for more tasks; and that time of a worker.
FILL_LOOKS, BATCH_WAIT_S = 5, 0.5
# Conflict keys over which puts into a bounded queue spread (tasks/capacity.py).
SEATS_MAX = 4_096

# Ended tasks that a queue with `retain_s` keeps; a sweep removes the oldest of more.
RETAINED_MAX = 100_000
# Chronicle: points by minute for a day and by hour for a month; times by span of an hour; the task keys of a
# queue with times of their own, among those that a worker counts.
MINUTES_KEPT, HOURS_KEPT = 1_440, 744
TIMES_SPAN_S, TIMES_SPANS = 1_200.0, 4
TIMES_ADDED_EVERY_S = 60.0
KEYS_TIMED, KEYS_COUNTED = 20, 1_000

# Failures kept of a task, and the text kept of each (FoundationDB advises values below 10 kB).
FAILURES_KEPT = 10
FAILURE_MESSAGE_BYTES_MAX = 1_000
FAILURE_DETAIL_BYTES_MAX = 8_000
# The class of a failure is part of a key of its buried task.
FAILURE_CLASS_BYTES_MAX = 200
# Classes of failure that a listing reads, the counters of all of them in one reply.
CLASSES_READ_MAX = 500
# A redrive moves the tasks of this time in one step; its process looks for a pause after REDRIVE_LOOK_S.
REDRIVE_STEP_S = 0.2
REDRIVE_LOOK_S = 1.0
# Bytes that one transaction moves into another queue or partition: payloads, failures, and sixteen times the
# records. A dozen keys contain the task key or the unique key, and each is a conflict, too. Each group of a
# task has some keys, and the name of the queue.
MOVED_BYTES_MAX = 4_000_000
MOVED_RECORD_COPIES = 16
MOVED_GROUP_BYTES = 2_500

# Workers. A transaction with an ack leaves a fifth of FoundationDB's time, and a tenth of its bytes, unused.
EFFECT_MAX_S = 4.0
EFFECT_BYTES_MAX = 9_000_000
# The time for which a worker does not read a queue that was empty, while other queues have tasks.
EMPTY_QUEUE_LOOK_S = 0.2
WORKER_WAIT_S = 30.0
# Tasks that acks have taken along go back if no thread of the worker is free for this time: a hook hangs.
REFILL_LIES_S = 1.0
BEAT_AGAIN_S = 0.5
# PULSE_S: how closely a worker measures its own standstills; SPELLS_KEPT: standstills and silences it
# remembers.
PULSE_S = 0.25
LATE_MIN_S = 0.05
SPELLS_KEPT = 1_000
SILENCE_MIN_S = 0.1
AMENDS_PER_BEAT = 20
SUSPECT_DELAY_S = 0.5
AWAY_FIRST_S = 0.5
AWAY_MAX_S = 30.0
PRESENCE_EVERY_S = 2.0
# A worker without news reads its orders this often, and a command waits so long until it has obeyed.
ORDERS_EVERY_S = 5.0
ORDERS_PATIENCE_S = 30.0
# A pause of the fleet ends by itself: after an hour, unless the command names another time.
FLEET_PAUSE_S = 3_600.0
RUNNING_SHOWN = 50
# The usual run time of tasks: classes that a worker measures, and runs after which later ones weigh more.
RUN_CLASSES_MAX, RUNS_WEIGHED = 100, 16
# Bytes for the names of queues, and for the running tasks: both fit into one value of 100,000 bytes.
PRESENCE_PART_BYTES_MAX = 40_000
WORKERS_LISTED_MAX = 1_000
THREADS_MAX = 1_000
ATTEMPTS_MAX = 1_000_000
CONCURRENCY_MAX = 10_000
PROCESSES_MAX = 1_000
# The session of a fleet's supervisor: a database may be away for this long, and the counts of the run stay.
# A row that a killed supervisor has left goes after this time.
RUN_TTR_S = 3_600.0
RUN_READ_EVERY_S = 0.5
RUN_READ_TIMEOUT_S = 0.3
# An unanswered read is not repeated at once, because the supervisor has to look after its processes.
RUN_READ_AGAIN_S = 5.0
WEIGHT_MAX = 1_000_000

SESSION_TTR_S = 30.0
# A detached lease of a task without a ttr (tasks/detached.py).
DETACHED_TTR_S = 60.0
BEATS_PER_TTR = 3
# The part of its ttr for which a heartbeat holds its session by the clock of the database. The rest is for
# read versions, which lag, and may come 10 % slower after `versionepoch enable`.
SESSION_HOLD_SHARE = 0.9
# Openers of a shared session that a heartbeat reads; further ones are not seen.
OPENERS_READ_MAX = 1_000
SWEEP_EVERY_S, SESSIONS_SWEPT_EVERY_S = 0.2, 0.5
# The processes under one root share the sweeping: with n of them, at most this number, each sweeps an n-th
# as often.
SWEEPERS_MAX = 10
SWEEPERS_COUNTED_EVERY_S = 5.0
DEAD_SESSIONS_MAX = 100
# One read of this many taken tasks is cheaper than one read for each of many sessions. An end of sessions
# asks for up to this number of holdings of a session in a queue, or a partition, in one transaction.
TAKEN_READ_MAX, HOLDINGS_ASKED_MAX = 50, 2_000
# Services of queues that a process remembers in each of two generations: some kilobytes each.
SERVICES_REMEMBERED = 500
# The shortest time between two log lines about one repeated trouble of a background thread.
TROUBLE_TOLD_EVERY_S = 60.0
# Different troubles that are known at a time; the oldest is forgotten, and logged as new when it comes back.
TROUBLES_KEPT = 100
QUEUES_PER_TRANSACTION = 50
# Persistent queues: the shortest time between two reads of join().
JOIN_PAUSE_S = 0.02
# The journal of a directory: the size at which the next of two files is begun, and the base gets the records.
GENERATION_BYTES_MAX = 4 << 20
# Partitions of one queue: a byte in the id of a task has the number.
PARTITIONS_MAX = 256
# Parts of the receipts of a root: a quarter of the writes of a queue, so 256 partitions need no more.
RECEIPT_PARTS_MAX = 64
# Task keys whose partition a process remembers.
TASK_KEYS_PLACED = 4096
# Of this many takes, one begins at another partition than a home of its process. So a partition of no
# process is drained too, while all homes have tasks.
TAKES_PER_VISIT = 8
# The shortest time between two visits of one process to a closed partition in which it has found no item. An
# item comes back there only from a process that has died.
EMPTY_VISITED_EVERY_S = 10.0
# One of these looks at all partitions clears the flags of empty ones beside its take. The others clear them
# only if they find nothing.
LOOKS_PER_CLEARING = 64
# The longest time for which a process relies on its list of live sessions, which decide its homes.
HOMES_CHOSEN_EVERY_S = 5.0
# Live sessions among which the partitions are shared out. Others choose without a look at each other.
HOME_SESSIONS_MAX = 500
# The shortest time between two looks, in one process, for empty partitions that can go.
PARTITIONS_LOWERED_EVERY_S = 60.0
# Schedules. The names, expressions and headers of one fit into a value with its data.
SCHEDULE_NAME_BYTES_MAX = 200
SCHEDULE_EXPRESSION_BYTES_MAX = 200
SCHEDULE_TIMEZONE_BYTES_MAX = 100
SCHEDULE_DATA_BYTES_MAX = 10_000
SCHEDULE_EVERY_MIN_S = 1.0
# Times that are shown of one schedule, and rows of one page of schedules.
SCHEDULE_TIMES_MAX = 100
SCHEDULES_LISTED_MAX = 50
# A due time that is handled later than this is missed. Passes are a second or two apart, clocks at most
# CLOCK_SKEW_S, and a restart of all workers takes less.
SCHEDULE_MISSED_AFTER_S = 60.0
# Tasks that one transaction puts for one schedule; transactions of one pass, and schedules that one look at
# those that are due reads.
SCHEDULE_FIRED_MAX = 10
SCHEDULES_FIRED_PER_PASS = 100
SCHEDULES_DUE_READ = 100
# A keeper looks for due schedules as often as the first says, and with n processes under one root an n-th as
# often; while a root has no schedule, as often as the second says.
SCHEDULES_PASSED_EVERY_S = 0.5
SCHEDULES_SOUGHT_EVERY_S = 2.0
# A schedule that cannot be fired is tried again after the first of these, then after twice that, up to the
# second. A process that lacks what a schedule needs leaves it to others for the second.
SCHEDULE_RETRY_FIRST_S = 1.0
SCHEDULE_RETRY_MAX_S = 60.0
SCHEDULE_ERROR_LENGTH_MAX = 500
# Groups of one task: the group of its put, and one more for each task that is put after it.
GROUPS_OF_TASK_MAX = 16
# Groups that one transaction of a sweep looks at, and groups that it lets end.
GROUPS_SWEPT_MAX = 50
GROUPS_ENDED_MAX = 10
# Of a member that a cancel ends: the most bytes but for its queue's prefix, and the places that have it.
CANCELLED_BYTES, CANCELLED_PREFIX_COPIES = 60_000, 320
# Groups whose counts a pass of sweeps remembers. The next pass clears the doubt of each with the same counts.
GROUPS_REMEMBERED_MAX = 1000
# Time for which the rows of an ended group are kept, if its create does not tell another.
GROUP_RETAIN_S = 86_400.0
# The shortest time between two looks at an ended group that still has buried members.
GROUP_LOOKED_AT_EVERY_S = 60.0
# Names that the first read of a cursor over elements asks for; each further one asks for twice as many.
NAMES_READ_FIRST = 16
# The embedded engine. With more watched keys, a ring reads the commit log: a look at one key costs less than
# decoding one record. Rings that one look answers; and a commit of more keys rings all processes.
WATCHED_KEYS_LOOKED_AT_MAX = 64
RINGS_AT_ONCE = 64
KEYS_RUNG_MAX = 1_000
# Records of old commits that one commit deletes from the log, if the remainder of its version is 0.
LOG_TRIMMED_MAX = 256
LOG_TRIMMED_EVERY_VERSIONS = 64
# Celery: bindings of one exchange, owned queues that one declaration looks at, and dead ones that it removes.
BINDINGS_MAX = 10_000
DEAD_QUEUES_DROPPED = 20

# `fdbqueue conformance`: a program that has failed is started again, up to this number of failures; the bytes
# of an answer.
CONFORMANCE_FAILURES_MAX = 3
CONFORMANCE_ANSWER_BYTES_MAX = 10_000_000
