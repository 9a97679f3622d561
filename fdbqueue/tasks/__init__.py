"""Task queues with leases: one life cycle, over any discipline. The page is docs/tasks.md."""
