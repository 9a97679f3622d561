"""Histories of real threads and processes, and their judge (docs/testing.md)."""

from fdbqueue.testing.history.judge import Verdict as Verdict
from fdbqueue.testing.history.judge import judge as judge
from fdbqueue.testing.history.model import REFUSED as REFUSED
from fdbqueue.testing.history.model import Bag as Bag
from fdbqueue.testing.history.model import Call as Call
from fdbqueue.testing.history.model import Fifo as Fifo
from fdbqueue.testing.history.model import Leases as Leases
from fdbqueue.testing.history.model import Model as Model
from fdbqueue.testing.history.model import Recorder as Recorder
from fdbqueue.testing.history.model import calls_of as calls_of
from fdbqueue.testing.history.model import edn_of as edn_of
from fdbqueue.testing.history.model import lines_of as lines_of
from fdbqueue.testing.history.model import read as read
