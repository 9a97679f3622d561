"""Queues without leases: the recipe's, fair and persistent ones, and those of elements."""
