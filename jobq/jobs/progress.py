"""Progress of a running attempt: as text for people, and as data for programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from jobq.errors import CodecError
from jobq.jobs.codec import decode_any, encode_plain

MAX_NOTE, MAX_DATA = 1_000, 2_000
#: Separates the text from the data.
MARK = "\x1f"


class Progress(NamedTuple):
    """A report of a running attempt, made with `Context.progress`.

    Attributes:
        fraction: Completed share, from 0 to 1.
        note: Text to show to people.
        data: The reported `data`; None if there is none.
    """

    fraction: float
    note: str = ""
    data: Any = None


def progress_text(fraction: float, note: str, data: Mapping[str, Any] | None) -> str:
    """Return the stored form of a report: the fraction, the note, and the data as JSON."""
    note = note.replace(MARK, " ").encode("utf-8", "replace")[:MAX_NOTE].decode("utf-8", "ignore")
    text = f"{min(1.0, max(0.0, fraction)):.4g} {note}".strip()
    if data is None:
        return text
    encoded = encode_plain(dict(data), "the data of a progress report").decode()
    if len(encoded.encode()) > MAX_DATA:
        raise CodecError(
            f"the data of a progress report takes {len(encoded.encode()):,} bytes; at most {MAX_DATA:,} are allowed. "
            "Pass less, or store the data elsewhere and pass its location"
        )
    return f"{text}{MARK}{encoded}"


def shown_progress(text: str) -> str:
    """Return the readable part of a stored progress report."""
    return text.partition(MARK)[0]


def read_progress(text: str) -> Progress | None:
    """Parse a stored progress report; return None for ''. Text in an unknown format becomes the note."""
    shown, _, encoded = text.partition(MARK)
    number, _, note = shown.partition(" ")
    try:
        return Progress(float(number), note, decode_any(encoded.encode()) if encoded else None)
    except (ValueError, CodecError):
        return Progress(0.0, shown) if shown else None
