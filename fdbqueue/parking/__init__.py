"""Parking: tasks of keys over a limit wait where no take meets them, and come back when the key is free."""
