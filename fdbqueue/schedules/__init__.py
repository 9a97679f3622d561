"""Schedules: tasks that are put at given times, by any process that passes (docs/schedules.md)."""
