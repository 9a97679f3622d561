"""Disciplines decide which ready task is next. Each is a file; discipline.py is their interface."""
