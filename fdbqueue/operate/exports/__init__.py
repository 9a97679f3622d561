"""Exports: whole queues in a file, and from a file into another database; both go on after a kill."""
