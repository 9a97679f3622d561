"""The auditor: judges each commit of a simulation by the state before it and the state after it."""
