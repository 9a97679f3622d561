"""Traces of the calls and attempts of this process, for OpenTelemetry (docs/observing.md).

Needs the extra `otel`: `pip install fdbqueue[otel]`.
"""

from fdbqueue.core import lazy

with lazy.needs("otel", "opentelemetry"):
    from fdbqueue.integrations.opentelemetry.tracing import trace as trace
