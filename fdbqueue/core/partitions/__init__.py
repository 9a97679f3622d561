"""Partitions: one queue as several, which share a name, a definition and a plan (docs/partitions.md)."""
