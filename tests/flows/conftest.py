"""Shared parts of the tests of flows."""

from __future__ import annotations

from tests.jobs.conftest import kit, registry

__all__ = ["kit", "registry"]
