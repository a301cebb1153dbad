"""Injects faults while producers and workers run, and checks their log, which is kept outside the server."""
