"""Fault injection: producers and workers run while faults are injected; a ledger outside the server is checked."""
