"""Flows: steps that depend on one another and may run in several queues."""
