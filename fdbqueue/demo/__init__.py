"""`fdbqueue demo`: source files through a queue, each counted exactly once in spite of a kill."""

from fdbqueue.demo.show import main as main
