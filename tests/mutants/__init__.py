"""Mutants: small changes of our own source, which tests or the simulation should find (docs/tests.md)."""
