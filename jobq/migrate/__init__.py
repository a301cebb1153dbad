"""Reads code bases of other queues, and says what changes when they move to jobq. Nothing is imported or run."""
