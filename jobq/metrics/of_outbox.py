"""Metrics of an outbox relay. The relay counts rows itself, so reading the metrics doesn't query the database."""

from __future__ import annotations

from collections.abc import Iterator

from jobq.metrics.names import OUTBOX, Family
from jobq.outbox.relay import Relay


def relay_families(relay: Relay) -> Iterator[Family]:
    """Yield the relay's counters, and the number of waiting rows when the relay last counted them."""
    totals, waiting = relay.totals, relay.waiting
    yield Family(OUTBOX["jobq_outbox_sent_total"], {(): totals.sent})
    yield Family(OUTBOX["jobq_outbox_refused_total"], {(): totals.failed})
    yield Family(OUTBOX["jobq_outbox_errors_total"], {(): totals.errors})
    yield Family(OUTBOX["jobq_outbox_rows"], {(): waiting.rows} if waiting else {})
    yield Family(OUTBOX["jobq_outbox_oldest_seconds"], {(): waiting.oldest_s} if waiting else {})
    yield Family(OUTBOX["jobq_outbox_refused_rows"], {(): waiting.failed} if waiting else {})
