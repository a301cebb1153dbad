"""What the tests of the kit share: the kit itself, on its private server, with a registry of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jobq.jobs.registry import Registry
from jobq.testing import Kit
from tests.conftest import Server


@pytest.fixture
def registry() -> Registry:
    """No job is in it yet."""
    return Registry()


@pytest.fixture
def jobq(registry: Registry, server: Server) -> Iterator[Kit]:
    """The kit on the suite's server, which is empty."""
    with Kit(server.url, registry=registry) as made:
        yield made
