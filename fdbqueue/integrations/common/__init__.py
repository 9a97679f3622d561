"""The parts that the faces for frameworks share: databases, the program's transaction, stored results."""
