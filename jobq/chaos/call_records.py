"""Makes the server delete call records sooner, so that they expire during outages."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from jobq.client import numbered_calls as caller
from jobq.client.scripts import Script, folder, load

#: Holds the seconds, for the workers of a round.
RECORD_VARIABLE = "JOBQ_CHAOS_RECORD"
_LIFE = "'PX', {:.0f})"


def shorten(record_s: float) -> None:
    """Let the server store records of this process's calls for only `record_s` seconds.

    Clients then repeat calls for at most half of this time.
    """
    before, after = (_LIFE.format(1000 * seconds) for seconds in (caller.RECORD_S, record_s))
    for script in _scripts():
        script.text = script.text.replace(before, after)
        script.source = script.text.encode()
        script.sha = hashlib.sha1(script.source, usedforsecurity=False).hexdigest()
    caller.RECORD_S, caller.REPEAT_S = record_s, record_s / 2


@contextmanager
def short_lived(record_s: float) -> Iterator[None]:
    """Inside the block, let the server store call records for only `record_s` seconds, unless this is 0."""
    usual = caller.RECORD_S
    if record_s:
        shorten(record_s)
    try:
        yield
    finally:
        if record_s:
            shorten(usual)


def shorten_from_environment() -> None:
    """Shorten the lifetime of call records if an environment variable requests it."""
    if given := os.environ.get(RECORD_VARIABLE):
        shorten(float(given))


def _scripts() -> list[Script]:
    files = (folder() / "queue").glob("[!_]*.lua")
    return [script for file in files if (script := load("queue", file.stem)).recorded]
