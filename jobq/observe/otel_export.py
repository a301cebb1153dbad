"""Set up OpenTelemetry's SDK in a worker's child, to export spans and metrics with OTLP over HTTP."""

from __future__ import annotations

import os
import socket

from opentelemetry import metrics as metrics_api
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_INSTANCE_ID, SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

#: Used if OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES don't set a name.
SERVICE = "jobq-worker"


def export_spans(metrics: bool) -> None:
    """Set this process's TracerProvider.

    Args:
        metrics: True to also set a MeterProvider.
    """
    resource = described()
    # The child flushes before it exits, and exits without atexit's handlers.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    if metrics:
        reader = PeriodicExportingMetricReader(OTLPMetricExporter())
        measured = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
        metrics_api.set_meter_provider(measured)


def described() -> Resource:
    """Return the service's name and attributes from the environment. The default name is `jobq-worker`."""
    resource = Resource.create()
    own: dict[str, str] = {}
    if str(resource.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        own[SERVICE_NAME] = SERVICE
    if SERVICE_INSTANCE_ID not in resource.attributes:
        own[SERVICE_INSTANCE_ID] = f"{socket.gethostname()}:{os.getpid()}"
    return resource.merge(Resource(own))
