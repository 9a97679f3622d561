"""Sessions: each task is taken in the name of one. When a session ends or dies, its tasks go back to the
queue.

A session is a record under the root, with a heartbeat beside it that its process renews. When the deadline of
a heartbeat has passed, the next sweep treats the session as dead and ends it.
"""
