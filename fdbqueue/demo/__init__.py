"""`fdbqueue demo`: a fleet counts source files, is killed and stalled at it, and each part counts once."""

from fdbqueue.demo.show import main as main
