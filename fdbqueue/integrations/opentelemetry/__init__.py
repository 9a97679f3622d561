"""Traces of the calls and attempts of this process, for OpenTelemetry (docs/observing.md).

Needs the extra `otel`: `pip install fdbqueue[otel]`.
"""

from fdbqueue.core import extras

with extras.needs("otel", "opentelemetry"):
    from fdbqueue.integrations.opentelemetry.tracing import trace as trace
