"""The stored parts of a task: its record, its keys, and the counters of its queue."""
