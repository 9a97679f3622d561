"""Imports: copies of the items of another system's queue, resumed after a kill without a loss or a double."""
