"""The judge of power loss: it cuts the power at any moment, and opens the files that a disk may then hold."""
