"""Workers: threads that take tasks and hand them to a handler, and fleets of processes full of them."""
