"""The vectors of the layout, and the program that makes them (docs/layout.md)."""
