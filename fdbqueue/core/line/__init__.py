"""The waiting line: one for contention and for waiting, whatever the queue (docs/design.md, 7)."""
