"""The fuzz: every public call and every option of the command line meets hostile values (docs/tests.md)."""
