"""The auditor: judges each commit of a simulation by the state before it and the state after it.

commit.py      a commit, and its step: the keys that it has changed, with their values before and after
mirror.py      the rows of the database as of the last commit
auditor.py     finds the queue of each changed key, and has the step judged
agreement.py   after each commit all keys agree, as a verification would find them
counters.py    after each commit each counter equals the keys that it counts
model.py       the tasks of one queue before and after a commit, and the calls that it has counted
lives.py       the legal steps of a task
calls.py       the calls that a commit counts are the steps that its tasks have taken
"""
