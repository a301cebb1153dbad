"""Runs jobs: one supervisor, a pool of forked children."""
