"""`fdbqueue demo`: a fleet counts source files exactly once, though its processes are killed and stalled."""

from fdbqueue.demo.show import main as main
