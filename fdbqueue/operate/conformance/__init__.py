"""The vectors of the key layout, and programs in other languages beside them (docs/conformance.md)."""
