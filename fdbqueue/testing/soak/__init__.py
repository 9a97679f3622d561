"""Kills and stops under load, then a count: python -m fdbqueue.testing.soak (docs/testing.md)."""
