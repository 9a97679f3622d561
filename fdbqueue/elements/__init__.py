"""Element queues: named elements that any process may lock, get and remove."""
