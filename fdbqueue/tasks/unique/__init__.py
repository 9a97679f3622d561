"""Unique keys: at most one task in its scope has a unique key, in the whole queue (docs/unique.md)."""
