"""Calls given a database: each has its effect once, and those of several threads share transactions."""
