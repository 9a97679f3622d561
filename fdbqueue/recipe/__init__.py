"""Queue: FoundationDB's queue recipe, first in, first out."""
