"""Rehearsal of faults: producers, workers and a nemesis, judged by a ledger outside the server."""
