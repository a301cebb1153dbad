"""Records of calls that live for seconds, so that within a round an outage outlasts them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

from jobq.client import numbered_calls as caller
from jobq.client.scripts import Script, folder, load

#: Seconds, for the workers of a round.
RECORD = "JOBQ_CHAOS_RECORD"
_LIFE = "'PX', {:.0f})"


def shorten(record_s: float) -> None:
    """From now on, in this process: records live so long, and calls are repeated for half of that."""
    before, after = (_LIFE.format(1000 * seconds) for seconds in (caller.RECORD_S, record_s))
    for script in _scripts():
        script.text = script.text.replace(before, after)
        script.source = script.text.encode()
        script.sha = hashlib.sha1(script.source, usedforsecurity=False).hexdigest()
    caller.RECORD_S, caller.REPEAT_S = record_s, record_s / 2


@contextmanager
def short_lived(record_s: float) -> Iterator[None]:
    """Records live so long inside; 0: as usual."""
    usual = caller.RECORD_S
    if record_s:
        shorten(record_s)
    try:
        yield
    finally:
        if record_s:
            shorten(usual)


def as_told() -> None:
    """What the round that this worker belongs to asks for."""
    if told := os.environ.get(RECORD):
        shorten(float(told))


def _scripts() -> list[Script]:
    files = (folder() / "queue").glob("[!_]*.lua")
    return [script for file in files if (script := load("queue", file.stem)).recorded]
