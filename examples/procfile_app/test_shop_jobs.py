"""Test that an order leads to one invoice, even if a worker is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shop_jobs


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of an empty journal."""
    path = tmp_path / "journal.txt"
    monkeypatch.setattr(shop_jobs, "JOURNAL", path)
    return path


def test_order_leads_to_an_invoice(jobq: Any, journal: Path) -> None:
    shop_jobs.order.enqueue(1)
    assert jobq.drain("high").done == 1
    jobq.assert_enqueued(shop_jobs.invoice, args=(1,), queue="low", mid="invoice-1")
    jobq.drain()
    assert journal.read_text().splitlines() == ["order 1", "invoice 1"]


def test_order_is_invoiced_once_although_it_may_be_noted_twice(jobq: Any, journal: Path) -> None:
    jobq.rehearse(
        shop_jobs.order, 1, before=lambda: journal.write_text(""),
        observe=lambda: {"journal": journal.read_text()}, allow=["journal"],
    )  # fmt: skip
