"""The plugin of pytest, in programs that a user would write."""
