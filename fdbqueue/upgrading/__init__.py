"""`fdbqueue upgrade`: queues of earlier releases get the key layout of this one, in bounded steps."""
