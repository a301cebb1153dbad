"""Measurements anyone can rerun: `make bench`, or `python -m bench CASE…`."""
