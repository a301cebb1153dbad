"""Declare a job, enqueue it, and wait for its result."""

from __future__ import annotations

from jobq import job


@job(name="greet", result_ttl="1m")
def greet(name: str) -> str:
    """Return a greeting."""
    return f"Hello, {name}!"


if __name__ == "__main__":
    print(greet.enqueue("world").result(timeout=60))
