"""docs/workers.md names no class that is not exported."""

import re

from tests.page import page

PAGE = page("docs/workers.md")
STANDARD = {"ProcessPoolExecutor", "SystemExit"}


def test_each_class_on_the_page_is_exported():
    """Classes and errors alike."""
    import fdbqueue
    from fdbqueue.core import errors

    named = set(re.findall(r"`([A-Z]\w+)[`(]", PAGE)) - {*STANDARD, "FDB_NETWORK_OPTION_KNOB"}
    assert {name for name in named if not hasattr(fdbqueue, name) and not hasattr(errors, name)} == set()
