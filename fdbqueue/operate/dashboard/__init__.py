"""Dashboard: the queues of a database in a browser (docs/dashboard.md).

Needs the extra `dashboard`: `pip install fdbqueue[dashboard]`.
"""

from fdbqueue.core import lazy

with lazy.needs("dashboard", "starlette", "anyio", "jinja2"):
    from fdbqueue.operate.dashboard.app import create_app as create_app
