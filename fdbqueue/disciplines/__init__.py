"""Disciplines: which ready task is next. Each is a file; discipline.py is what a life cycle asks of one."""
