"""Jobs of a small shop."""

from __future__ import annotations

import os
from pathlib import Path

from jobq import job

JOURNAL = Path(os.environ.get("JOURNAL", "journal.txt"))


@job(queue="high", name="shop.order")
def order(number: int) -> None:
    """Process an urgent order."""
    note(f"order {number}")
    invoice.options(mid=f"invoice-{number}").enqueue(number)


@job(queue="low", name="shop.invoice")
def invoice(number: int) -> None:
    """Send the invoice of an order; the job `order` enqueues it."""
    note(f"invoice {number}")


def note(line: str) -> None:
    """Append one line to the journal."""
    with JOURNAL.open("a") as journal:
        journal.write(line + "\n")
