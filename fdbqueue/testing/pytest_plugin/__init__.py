"""A plugin of pytest for programs that use fdbqueue (docs/pytest.md).

It has the fixtures `fdbqueue_db` and `fdbqueue_worker`, the marker `fdbqueue_simulation`, and functions that
assert. pytest loads it by its entry point (plugin.py). The marker needs the extra `testing`.
"""

from fdbqueue.testing.pytest_plugin.running import Runner as Runner
from fdbqueue.testing.pytest_plugin.running import ShiftedRuntime as ShiftedRuntime
from fdbqueue.testing.pytest_plugin.running import assert_buried as assert_buried
from fdbqueue.testing.pytest_plugin.running import assert_put as assert_put
