"""Serve the dashboard's figures as JSON under `/api/v1` to programs that have a token."""
