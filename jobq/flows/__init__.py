"""Flows: steps that wait for one another, over several queues."""
