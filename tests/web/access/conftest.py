"""Shared fixtures of tests of access."""

from __future__ import annotations

import pytest

from jobq.web.access import passwords


@pytest.fixture
def quick_hashes(monkeypatch):
    """Hash passwords at a 64th of the cost, which has a test of its own."""
    monkeypatch.setattr(passwords, "LOG2_N", 9)
    monkeypatch.setattr(passwords, "_NOBODY", passwords._NOBODY.replace(":15:", ":9:"))
