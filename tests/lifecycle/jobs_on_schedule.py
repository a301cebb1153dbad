"""A job that each second calls for; LEDGER names the file that it writes to."""

from __future__ import annotations

import os
from pathlib import Path

from jobq import current, job, schedule


@schedule(every=1, name="beat", missed="all", overlap="allow", args=["x"])
@job(queue="low")
def beat(text: str) -> None:
    found = current()
    with Path(os.environ["LEDGER"]).open("a") as file:
        file.write(f"{text} {found.tick.isoformat() if found.tick else '-'} {found.missed}\n")
