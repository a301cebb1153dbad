"""Reads code bases of other queues, and lists changes for a move to jobq. The code is never imported or run."""
