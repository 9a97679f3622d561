"""Metrics of this process and of its queues, for Prometheus (docs/observing.md, docs/metrics.md).

Needs the extra `metrics`: `pip install fdbqueue[metrics]`.
"""

from fdbqueue.core import lazy

with lazy.needs("metrics", "prometheus_client"):
    from fdbqueue.integrations.prometheus.collector import QueueCollector as QueueCollector
    from fdbqueue.integrations.prometheus.collector import measure as measure
