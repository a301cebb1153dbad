"""The jobs of the upgrade tests. They append what they did to the file that JOBQ_TEST_LEDGER names."""

from __future__ import annotations

import os

from jobq import current, job


def note(word: str, mid: str) -> None:
    """One line, appended whole."""
    descriptor = os.open(os.environ["JOBQ_TEST_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{word} {mid} {os.getpid()}\n".encode())
    os.close(descriptor)


@job(name="deliver", queue="letters", retries=3)
def deliver(text: str) -> str:
    """Done at once."""
    note(f"delivered-{text}", current().mid)
    return text


@job(name="seal", queue="sealed", retries=3)
def seal(text: str) -> None:
    """The same, on the queue whose calls are signed."""
    note(f"sealed-{text}", current().mid)
