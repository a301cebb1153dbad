"""Read untrusted JSON: a value of an unexpected type becomes None or empty instead of an error."""

from __future__ import annotations

import json
from typing import Any

#: The last millisecond of the year 9999.
LATEST_MS = 253_402_300_799_999


def decoded(text: bytes | str | None) -> Any:
    """Return the data in a JSON text; None if the text isn't valid JSON."""
    try:
        return json.loads(text or b"")
    except (ValueError, RecursionError):
        return None


def text_in(value: Any) -> str:
    """Return a string that can be encoded as UTF-8; '' if the value isn't a string."""
    # JSON can contain lone surrogates, which can't be encoded, so they become escapes.
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else ""


def number_in(value: Any) -> int | None:
    """Return a whole number from 0 to LATEST_MS; None for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LATEST_MS:
        return None
    return value
