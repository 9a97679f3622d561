"""The vectors of the key layout, for programs in other languages (docs/layout.md)."""
