"""Print lines, tables and JSON. Everything read from a queue is escaped."""

from __future__ import annotations

import errno
import json
import os
import select
import shutil
import sys
import time
import unicodedata
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from itertools import count, islice
from typing import Any, NamedTuple

import click
from msgspec import Struct, structs

from jobq.observe.escape import escaped as escaped

#: A record to print: a declared record, or a mapping.
OneRecord = Mapping[str, Any] | Struct
BATCH = 500
#: Characters that a text column keeps when it is cut.
MIN_WIDTH = 12
STDOUT, STDERR = 1, 2
#: A day within the years 1 and 9999, whatever the zone.
EARLIEST_MS = -62_135_510_400_000
LATEST_MS = 253_402_214_400_000


def indented(text: str) -> str:
    """Escape `text` and indent its lines, so that no line looks like a line of jobq's own output."""
    return "\n    ".join(map(escaped, text.split("\n")))


def json_line(value: object) -> str:
    """Return a JSON document in ASCII, which is safe to print on a terminal."""
    return json.dumps(value, ensure_ascii=True, default=_plain)


def _plain(value: object) -> object:
    if not isinstance(value, Struct):
        return str(value)
    return dict(zip(value.__struct_encode_fields__, structs.astuple(value), strict=True))


def content_facts(content: bytes) -> dict[str, str]:
    """Return `content` as text. If it isn't UTF-8, also return `content_base64`."""
    text = content.decode("utf-8", "backslashreplace")
    same = text.encode() == content
    return (
        {"content": text}
        if same
        else {"content": text, "content_base64": b64encode(content).decode()}
    )


def wants_color(environ: Mapping[str, str] | None = None) -> bool | None:
    """Return False if NO_COLOR is set, True if FORCE_COLOR is set, otherwise None to let the terminal decide."""
    env = os.environ if environ is None else environ
    if env.get("NO_COLOR"):
        return False
    return True if env.get("FORCE_COLOR") else None


def width_of(text: str) -> int:
    """Return how many columns `text` takes on a terminal."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


class Listing(NamedTuple):
    """How to list records.

    Attributes:
        columns: Fields of the records; `heading:field` has another heading.
        drops: Headings to leave out where a terminal is too narrow, in this order.
        empty: Text if there is no record.
        whole: Headings of columns that are never cut, such as ids that people copy; their lines may be longer than the
            terminal.
    """

    columns: Sequence[str]
    drops: Sequence[str] = ()
    empty: str = ""
    whole: Collection[str] = ()

    def lines(self, records: Iterable[OneRecord]) -> Iterator[str]:
        """Return the lines of a table that fits the terminal."""
        headings = [column.partition(":")[0] for column in self.columns]
        fields = [column.rpartition(":")[2] for column in self.columns]
        rows = (
            [
                getattr(record, field) if isinstance(record, Struct) else record[field]
                for field in fields
            ]
            for record in records
        )
        whole = [i for i, heading in enumerate(headings) if heading in self.whole]
        return table(headings, rows, drops=self.drops, width=terminal_width(), whole=whole)


def terminal_width() -> int | None:
    """Return how many columns the terminal at stdout has; None if stdout isn't a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(
    headings: Sequence[str], rows: Iterable[Sequence[object]], figures: Collection[int] = (),
    drops: Sequence[str] = (), width: int | None = None, whole: Collection[int] = (),
) -> Iterator[str]:  # fmt: skip
    """Yield aligned lines: numbers and the columns `figures` are right-aligned, other columns left-aligned and escaped.

    If lines would be longer than `width`, the columns in `drops` are left out, first to last. Then the widest text
    columns are cut, except the columns in `whole`. Widths are measured per batch of rows, so memory use stays constant.
    """
    left = iter(rows)
    widths = [width_of(heading) for heading in headings]
    kept = list(range(len(headings)))
    for first in count():
        cells = [[_cell(value) for value in row] for row in islice(left, BATCH)]
        if not cells and first:
            return
        widths = [max(w, *(width_of(row[i][0]) for row in cells), 0) for i, w in enumerate(widths)]
        right = [
            i in figures or (bool(cells) and all(row[i][1] for row in cells))
            for i in range(len(headings))
        ]
        if width is not None:
            if not first:
                kept = _fitting(headings, widths, drops, width)
            _narrow(
                widths,
                [i for i in kept if not right[i] and i not in whole],
                _length(kept, widths) - width,
            )
        for row in [list(headings)] * (not first) + [[text for text, _ in row] for row in cells]:
            yield "  ".join(_padded(row[i], widths[i], right[i]) for i in kept).rstrip()


def _fitting(
    headings: Sequence[str], widths: Sequence[int], drops: Sequence[str], width: int
) -> list[int]:
    kept = list(range(len(headings)))
    for heading in drops:
        if _length(kept, widths) <= width:
            break
        kept = [i for i in kept if headings[i] != heading]
    return kept


def _length(kept: Sequence[int], widths: Sequence[int]) -> int:
    return sum(widths[i] for i in kept) + 2 * (len(kept) - 1)


def _narrow(widths: list[int], texts: Sequence[int], over: int) -> None:
    """Shorten text columns by `over` characters in total, always the widest column first, and none below MIN_WIDTH."""
    for _ in range(over):
        widest = max(texts, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= MIN_WIDTH:
            return
        widths[widest] -= 1


def _cell(value: object) -> tuple[str, bool]:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}", True
    return escaped(str(value)), False


def _padded(text: str, width: int, right: bool) -> str:
    if width_of(text) > width:
        text = _cut(text, width - 1) + "…"
    gap = " " * (width - width_of(text))
    return gap + text if right else text + gap


def _cut(text: str, width: int) -> str:
    while width_of(text) > width:
        text = text[: min(len(text) - 1, width)]
    return text


def moment(at_ms: int) -> str:
    """Format a time in the user's time zone. Return '' for 0, and the number itself if a date can't represent it."""
    if not at_ms:
        return ""
    if not EARLIEST_MS <= at_ms <= LATEST_MS:
        return f"{at_ms} ms"
    return datetime.fromtimestamp(at_ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def open_standard_streams() -> None:
    """Open /dev/null for each closed standard stream, so that no socket gets the stream's file descriptor."""
    while (nowhere := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        pass
    os.close(nowhere)
    for name, number in (("stdout", STDOUT), ("stderr", STDERR)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", closefd=False))


def silence_closed_pipes() -> bool:
    """Flush stdout and stderr. If a stream's pipe is closed, redirect the stream to /dev/null and return True."""
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
    """Sleep, but raise BrokenPipeError as soon as stdout has no reader."""
    watch = select.poll()
    try:
        watch.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # no file
        time.sleep(seconds)
        return
    for _, events in watch.poll(round(seconds * 1000)):
        if events & (select.POLLERR | select.POLLHUP):
            raise BrokenPipeError(errno.EPIPE, "stdout has no reader")
        time.sleep(seconds)  # a device that can't be watched


def progress(length: int | None, label: str, *, quiet: bool) -> AbstractContextManager[Any]:
    """Return a progress bar on stderr, shown only on a terminal."""
    hidden = quiet or not sys.stderr.isatty()
    return click.progressbar(length=length or 0, label=label, file=sys.stderr, hidden=hidden)


@contextmanager
def waiting(text: str, *, quiet: bool) -> Iterator[None]:
    """While the block runs, show `text` on stderr if stderr is a terminal."""
    shown = not quiet and sys.stderr.isatty()
    if shown:
        click.echo(f"{text}…", nl=False, err=True)
    try:
        yield
    finally:
        if shown:
            click.echo("\r\x1b[K", nl=False, err=True, color=True)
