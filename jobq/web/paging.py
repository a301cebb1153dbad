"""Page numbers for complete lists, such as the list of workers."""

from __future__ import annotations

PER_PAGE = 100


def page_number(text: str, count: int) -> int:
    """Return the requested page number, from 1, or the nearest page that exists."""
    wanted = int(text) if text.isdecimal() and len(text) < 8 else 1
    return max(1, min(wanted, -(-count // PER_PAGE)))
