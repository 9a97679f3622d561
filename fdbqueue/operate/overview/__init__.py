"""The figures of all queues under a root, in one or two round trips."""
