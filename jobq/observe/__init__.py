"""Middleware for monitoring systems, and functions that read and explain events."""
