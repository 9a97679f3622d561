"""Files that stand beside the tests of Dramatiq: test_upstream.py copies them there."""
