"""Pages of a list that is read whole: workers, schedules, keys of one page."""

from __future__ import annotations

PER_PAGE = 100


def page_number(text: str, count: int) -> int:
    """Return the page that an address asks for, from 1: the nearest one that there is."""
    wanted = int(text) if text.isdecimal() and len(text) < 8 else 1
    return max(1, min(wanted, -(-count // PER_PAGE)))
