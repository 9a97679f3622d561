"""Priority: the task with the lowest `pri` is next, the oldest among equals."""

from fdbqueue.disciplines.fifo import Fifo
from fdbqueue.records.keys import NUMBER, Record


class Priority(Fifo):
    def place(self, record: Record) -> bytes:
        return NUMBER.pack(record.pri) + super().place(record)
