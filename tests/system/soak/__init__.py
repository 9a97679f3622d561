"""Kills and stops under load, then a count: python -m tests.system.soak (docs/tests.md)."""
