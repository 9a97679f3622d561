"""A shop whose orders, and the tasks about them, are in one database."""
