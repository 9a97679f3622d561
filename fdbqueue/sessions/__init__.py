"""Sessions: a task is taken in the name of one. A session that ends or dies gives its tasks back.

A session is a record under the root, with a heartbeat beside it that its process renews. If the time of a
heartbeat is over, the next sweeper takes the session for dead and ends it.
"""
