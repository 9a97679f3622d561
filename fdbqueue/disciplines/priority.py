"""Priority: the task of the lowest number, the one that came first among equals."""

from fdbqueue.disciplines.fifo import Fifo
from fdbqueue.records.keys import NUMBER, Record


class Priority(Fifo):
    def place(self, record: Record) -> bytes:
        return NUMBER.pack(record.pri) + record.id
