"""Placement: which storage servers have the partitions of a queue, and how they come to different ones."""
