"""Adapters to Celery, Django, Dramatiq, Taskiq, Prometheus and OpenTelemetry."""
