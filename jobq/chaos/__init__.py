"""Injects faults while producers and workers run, and checks the events that they log outside the server."""
