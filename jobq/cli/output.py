"""What commands print: plain lines, tables, JSON; nothing that came from a queue reaches a terminal raw."""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any

import click

from jobq.observe.escape import escaped as escaped

STRETCH = 500
STDOUT, STDERR = 1, 2
#: A day within the years 1 and 9999, whatever the zone.
EARLIEST_MS = -62_135_510_400_000
LATEST_MS = 253_402_214_400_000


def indented(text: str) -> str:
    """`text` with its lines kept, none of which can pose as one of ours."""
    return "\n    ".join(map(escaped, text.split("\n")))


def json_line(record: Mapping[str, Any]) -> str:
    """One JSON document in ASCII, so that it too is safe on a terminal."""
    return json.dumps(record, ensure_ascii=True, default=str)


def json_text(value: object) -> str:
    """The same of any value."""
    return json.dumps(value, ensure_ascii=True, default=str)


def wants_color(environ: Mapping[str, str] | None = None) -> bool | None:
    """False under NO_COLOR, True under FORCE_COLOR, None: a terminal decides."""
    env = os.environ if environ is None else environ
    if env.get("NO_COLOR"):
        return False
    return True if env.get("FORCE_COLOR") else None


def width_of(text: str) -> int:
    """Columns that `text` takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], figures: Collection[int] = ()
) -> Iterator[str]:
    """Aligned lines: numbers and the columns `figures` to the right, everything else to the left and escaped.

    Widths are taken from a stretch of rows at a time, so that a million rows need no memory.
    """
    left = iter(rows)
    widths = [width_of(heading) for heading in headings]
    for first in count():
        cells = [[_cell(value) for value in row] for row in islice(left, STRETCH)]
        if not cells and first:
            return
        widths = [max(w, *(width_of(row[i][0]) for row in cells), 0) for i, w in enumerate(widths)]
        right = [
            i in figures or (bool(cells) and all(row[i][1] for row in cells))
            for i in range(len(headings))
        ]
        for row in [list(headings)] * (not first) + [[text for text, _ in row] for row in cells]:
            yield "  ".join(
                _padded(cell, widths[i], right[i]) for i, cell in enumerate(row)
            ).rstrip()


def _cell(value: object) -> tuple[str, bool]:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}", True
    return escaped(str(value)), False


def _padded(text: str, width: int, right: bool) -> str:
    gap = " " * (width - width_of(text))
    return gap + text if right else text + gap


def moment(at_ms: int) -> str:
    """A time in the user's zone, '' for none; what is beyond the calendar as it is."""
    if not at_ms:
        return ""
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def open_standard_streams() -> None:
    """Where one was closed by whoever started the process, write to nowhere; nor may a socket get its number."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(nowhere)
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def silence_closed_pipes() -> bool:
    """Flush; what nobody reads any more goes nowhere from here on. Whether that is so of anything."""
    gone = False
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            gone = True
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
    return gone


def pause(seconds: float) -> None:
    """Sleep. Raises BrokenPipeError once whoever read stdout has stopped, though there is nothing to print."""
    watch = select.poll()
    try:
        watch.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # no file
        time.sleep(seconds)
        return
    for _, found in watch.poll(round(seconds * 1000)):
        if found & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError(errno.EPIPE, "stdout is read no more")
        time.sleep(seconds)  # a device that can't be watched


def progress(length: int | None, label: str, *, quiet: bool) -> AbstractContextManager[Any]:
    """A progress bar on stderr, shown only there where somebody looks."""
    hidden = quiet or not sys.stderr.isatty()
    return click.progressbar(length=length or 0, label=label, file=sys.stderr, hidden=hidden)
