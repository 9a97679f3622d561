"""FoundationDB's transaction API over LMDB: `import fdbqueue.embedded as fdb`.

It has the names of the official binding at 7.3, for a directory instead of a cluster, without the directory
layer, tenants and locality.
"""

import fdb as _binding
from fdb import tuple
from fdb.subspace_impl import Subspace

from fdbqueue.embedded import impl
from fdbqueue.embedded.database import Database
from fdbqueue.embedded.decorator import transactional
from fdbqueue.embedded.futures import Future
from fdbqueue.embedded.module import (
    LATEST_API_VERSION,
    api_version,
    get_api_version,
    is_api_version_selected,
    open,
)
from fdbqueue.embedded.options import StreamingMode
from fdbqueue.embedded.options import network_options as options
from fdbqueue.embedded.rangeread import KeyValue
from fdbqueue.embedded.selectors import KeySelector
from fdbqueue.embedded.transaction import Transaction
from fdbqueue.fdberror import FDBError, predicates

# The tuple layer looks up `fdb.impl.Value` when it packs a versionstamp. The engine's module serves until the
# binding's own one, which needs the C library, is imported and replaces it.
if not hasattr(_binding, "impl"):
    _binding.impl = impl

__all__ = [
    "LATEST_API_VERSION",
    "Database",
    "FDBError",
    "Future",
    "KeySelector",
    "KeyValue",
    "StreamingMode",
    "Subspace",
    "Transaction",
    "api_version",
    "get_api_version",
    "impl",
    "is_api_version_selected",
    "open",
    "options",
    "predicates",
    "transactional",
    "tuple",
]
