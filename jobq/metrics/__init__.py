"""Metrics and probes of workers, and the exporter's metrics of queues."""
