"""The ground that every queue stands on: database, transactions, the line, sessions, keys, errors."""
