"""Diagnosis: the checks of `fdbqueue doctor`. Each reads first, and then decides on values.

examining.py runs them and waits between two looks. The others see, and decide in pure functions
that return results.
"""
