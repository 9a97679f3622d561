"""Named queues: what the root knows of each, and the check that a queue is still there."""
