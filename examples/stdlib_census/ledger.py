"""Record each job's start, end or failure as a line of JSON, in a file per process."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from counting import Counts


class Line(NamedTuple):
    """One record of a job. `at` is in seconds, by a clock that all processes of a machine share."""

    word: str
    path: str
    pid: int
    at: float
    counts: Counts | None = None


def write(folder: str, word: str, path: str, counts: Counts | None = None) -> None:
    """Append one record in a single write."""
    line: dict[str, Any] = {"word": word, "path": path, "pid": os.getpid(), "at": time.monotonic()}
    if counts is not None:
        line["counts"] = vars(counts)
    descriptor = os.open(
        Path(folder, f"{os.getpid()}.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
    )
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


def read(folder: Path, pid: int | None = None) -> Iterator[Line]:
    """Yield all records, or the records of one process. Skip a killed process's incomplete line."""
    for file in sorted(folder.glob(f"{pid or '*'}.jsonl")):
        for text in file.read_text(encoding="utf-8").splitlines():
            try:
                loaded = json.loads(text)
            except ValueError:
                continue
            counts = loaded.get("counts")
            if counts is not None:
                counts = Counts(**{**counts, "imports": Counter(counts["imports"])})
            yield Line(loaded["word"], loaded["path"], loaded["pid"], loaded["at"], counts)


def unfinished(folder: Path, pid: int) -> str | None:
    """Return the file that a process is counting, or None."""
    last = None
    for line in read(folder, pid):
        last = line
    return last.path if last is not None and last.word == "start" else None


def pids(folder: Path) -> list[int]:
    """Return the ids of processes with records, latest writer first."""
    files = sorted(folder.glob("*.jsonl"), key=lambda file: file.stat().st_mtime, reverse=True)
    return [int(file.stem) for file in files]
