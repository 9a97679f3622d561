"""The aftermath of a run: no fault happens any more, and fresh processes take what the dead have left."""
