"""Dramatiq on fdbqueue: its own tests, real workers, and deaths."""
