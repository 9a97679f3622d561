"""Limits: the number of tasks that run at a time, or start in a span of time, in all queues that share it."""
