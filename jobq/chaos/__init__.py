"""Injects faults while producers and workers run, and checks a ledger outside the server."""
