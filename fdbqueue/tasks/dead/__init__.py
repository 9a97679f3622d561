"""Dead letters: buried tasks by class of failure, and their way back. docs/dead-letters.md is their page."""
