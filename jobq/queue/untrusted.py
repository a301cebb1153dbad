"""Untrusted JSON: a value of an unexpected kind is None or empty, and never an error."""

from __future__ import annotations

import json
from typing import Any

#: The last millisecond of the year 9999.
LATEST_MS = 253_402_300_799_999


def decoded(text: bytes | str | None) -> Any:
    """Return the data of a JSON text; None if it isn't one."""
    try:
        return json.loads(text or b"")
    except (ValueError, RecursionError):
        return None


def text_in(value: Any) -> str:
    """Return a text that can be written anywhere; '' for anything else."""
    # Lone surrogates, which JSON can hold, break what writes text.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else ""


def number_in(value: Any) -> int | None:
    """Return a whole number from 0 to a year that can be printed; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LATEST_MS:
        return None
    return value
