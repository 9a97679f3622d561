"""FoundationDB's transaction API over LMDB: `import fdbqueue.embedded as fdb`.

The names of the official binding at 7.3, for a directory instead of a cluster. The directory layer,
tenants and locality are not part of it.
"""

from fdb import tuple as tuple
from fdb.subspace_impl import Subspace as Subspace

from fdbqueue.embedded import impl as impl
from fdbqueue.embedded.database import Database as Database
from fdbqueue.embedded.decorator import transactional as transactional
from fdbqueue.embedded.errors import FDBError as FDBError
from fdbqueue.embedded.errors import predicates as predicates
from fdbqueue.embedded.futures import Future as Future
from fdbqueue.embedded.module import LATEST_API_VERSION as LATEST_API_VERSION
from fdbqueue.embedded.module import api_version as api_version
from fdbqueue.embedded.module import get_api_version as get_api_version
from fdbqueue.embedded.module import is_api_version_selected as is_api_version_selected
from fdbqueue.embedded.module import open as open
from fdbqueue.embedded.options import StreamingMode as StreamingMode
from fdbqueue.embedded.options import network_options as options
from fdbqueue.embedded.rangeread import KeyValue as KeyValue
from fdbqueue.embedded.selectors import KeySelector as KeySelector
from fdbqueue.embedded.transaction import Transaction as Transaction
