"""Sentry's SDK with a transport that keeps what it would send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from jobq.jobs import middleware
from jobq.jobs.middleware import everywhere


class Kept(Transport):
    """Keeps envelopes, and how often it was flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.envelopes: list[Any] = []
        self.flushes = 0

    def capture_envelope(self, envelope: Any) -> None:
        self.envelopes.append(envelope)

    def flush(self, timeout: float, callback: Any = None) -> None:
        self.flushes += 1

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The items of one kind ("event", "transaction", "span") as JSON."""
        return [
            item.payload.json
            for envelope in self.envelopes
            for item in envelope.items
            if item.type == kind
        ]


@pytest.fixture
def sentry() -> Iterator[Callable[..., Kept]]:
    """sentry(**options): an initialised SDK; what it sends."""
    before, everywhere.layers = everywhere.layers, ()
    # Once settled, whatever waits to be added can't come in the middle of a test.
    middleware.everywhere.add_imported()
    everywhere.layers = ()

    def initialise(**options: Any) -> Kept:
        kept = Kept()
        sentry_sdk.init(
            "http://key@localhost/1",
            transport=kept,
            default_integrations=False,
            traces_sample_rate=1.0,
            **options,
        )
        return kept

    yield initialise
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)
    sentry_sdk.get_isolation_scope().clear()
    sentry_sdk.get_current_scope().clear()
    everywhere.layers = before
