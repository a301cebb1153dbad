"""`jobq queues`: how many messages are where, once or live."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr
from io import StringIO
from itertools import count
from typing import TYPE_CHECKING, Any

import click

from jobq.cli import output
from jobq.cli.options import DURATION, command, option, queues_option
from jobq.cli.session import Session

if TYPE_CHECKING:
    from jobq.queue.queue import Queue

COLUMNS = ("ready", "delayed", "locked", "requeued", "done", "deduped", "dead", "messages")
EXAMPLES = """
    jobq queues
    jobq queues --watch
    jobq queues --queues low,high --json
    jobq queues --watch --every 5s --json | jq .ready
"""


@command("queues", examples=EXAMPLES)
@queues_option
@option("-w", "--watch", is_flag=True, help="Stay, and show it live until Ctrl-C.")
@option("--every", type=DURATION, default="1s", show_default=True, help="How often, with --watch.")
@option("--times", type=click.IntRange(1), help="Looks to take, with --watch.  [default: no end]")
def queues(
    session: Session, queues: str | None, watch: bool, every: float, times: int | None
) -> None:
    """Show how many messages are where, queue by queue.

    ready: to run now; delayed: not before a time; locked: running; requeued: newer content waits for the
    run to end; done: awaiting collection; deduped: done, refusing its mid; dead: out of attempts. Behind them:
    whether a queue is paused, or has ready messages and no worker that serves it.
    """
    if not watch:
        found = list(rows(session, queues))
        if not found and not session.problems:
            session.note(
                "no queue was ever used here; enqueue something, or check --url and --namespace"
            )
        _print(lines(session, found))
        return
    live = not session.as_json and sys.stdout.isatty()
    with _screen() if live else nullcontext():
        for look in range(times) if times else count():
            if look:
                output.pause(every)
            # On a screen of its own, what stderr would get stands below the table, as long as it is so.
            told = StringIO()
            with redirect_stderr(told) if live else nullcontext():
                shown = lines(session, list(rows(session, queues)))
            if live:
                _draw([*shown, *told.getvalue().splitlines()])
                session.problems.clear()
            else:
                _print(shown)


def rows(session: Session, names: str | None) -> Iterator[dict[str, Any]]:
    """One record per queue that can be read."""

    served = _served(session)

    def row(queue: Queue) -> Iterator[dict[str, Any]]:
        counts = queue.admin.counts()
        numbers = {column: getattr(counts, column) for column in COLUMNS}
        workers = None if served is None else served.get(queue.name, 0)
        yield {"queue": queue.name, **numbers, "paused": counts.paused, "workers": workers}

    yield from session.from_each(names, row)


def lines(session: Session, found: list[dict[str, Any]]) -> Iterable[str]:
    """The table, or JSON lines."""
    if session.as_json:
        return session.lines(found, {})
    shown = [{**record, "remark": _remark(record)} for record in found]
    return session.lines(shown, {"queue": "queue", **{c: c for c in COLUMNS}, "": "remark"})


def _served(session: Session) -> dict[str, int] | None:
    """By how many workers each queue is served; None where that can't be read."""
    from jobq.queue.directory import served

    with session.tolerating("workers", "list of"):
        return served(session.client)
    return None


def _remark(record: dict[str, Any]) -> str:
    remarks = ["paused"] if record["paused"] else []
    if record["ready"] and record["workers"] == 0:
        remarks.append("no worker")
    return ", ".join(remarks)


def _print(shown: Iterable[str]) -> None:
    for line in shown:
        click.echo(line)


def _draw(shown: Iterable[str]) -> None:
    """Over what is there, in one write, line by line to its end: nothing flickers."""
    heading = f"{time.strftime('%H:%M:%S')}  jobq queues, Ctrl-C ends"
    fitting = [heading, "", *shown][: shutil.get_terminal_size().lines - 1]
    click.echo("\x1b[H" + "\x1b[K\n".join(fitting) + "\x1b[J", nl=False, color=True)


@contextmanager
def _screen() -> Iterator[None]:
    """The terminal's second screen, which leaves the first as it was."""
    click.echo("\x1b[?1049h\x1b[?25l", nl=False, color=True)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        click.echo("\x1b[?25h\x1b[?1049l", nl=False, color=True)
