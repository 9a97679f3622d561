"""Diagnosis: the checks of `fdbqueue doctor`. Each reads first, and then decides on values.

examining.py runs them and waits between two looks. The others have one subject each, and a pure function that
returns results.
"""
