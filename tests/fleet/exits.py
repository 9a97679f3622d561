"""A module that is a program: importing it ends the process."""

import sys

sys.exit(3)
