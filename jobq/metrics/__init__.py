"""Metrics and health checks of workers, and metrics of queues."""
