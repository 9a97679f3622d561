"""`fdbqueue demo`: a fleet counts source files exactly once, though its processes are killed and stalled."""

from fdbqueue.operate.demo.show import main as main
