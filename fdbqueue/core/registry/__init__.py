"""Named queues: their definitions under the root, and the check that a queue still exists."""
