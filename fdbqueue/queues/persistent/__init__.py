"""A persistent queue.Queue, made of the task life cycle: a proxy is a session, un-acked is TAKEN."""
