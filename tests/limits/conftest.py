"""What the tests of limits share: a beginning of time."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture
def at() -> Callable[[float], int]:
    """at(ms): an epoch so long after the test's own beginning of time."""
    return lambda ms: 1_700_000_000_000 + int(ms)
