"""`jobq audit-log`: who changed what."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from jobq.cli import output
from jobq.cli.options import limit_option, option, queues_option_of
from jobq.cli.output import Listing
from jobq.cli.session import Session, command
from jobq.queue.audit_log import AuditEntry, AuditLog, without_ended_intents

#: Entries that one command looks at.
MOST_LOOKED_AT = 100_000
COLUMNS = ("at", "who", "role", "verb", "queue", "filter", "count", "phase", "note")
ENTRIES = Listing(
    COLUMNS, ("role", "note", "count", "filter"),
    "no entries: no command or page has changed anything here",
)  # fmt: skip


@command(
    "audit-log",
    "",
    "--queues mails --since 1d",
    "--who anna --verb revive --json",
    "-n 1000 --intents",
)
@limit_option(50, 100_000)
@queues_option_of("Only entries about one of these queues, or about all.")
@option("--who NAME", "Only entries of this person.")
@option("--verb VERB", "Only entries of this verb, such as pause.")
@option("--since DURATION", "Only entries of this long ago or newer.")
@option("--intents", "Also show the entry that each operation wrote before it began.")
def audit_log(
    session: Session, limit: int, queues: str | None, since: float | None, intents: bool,
    **wanted: str | None,
) -> None:  # fmt: skip
    """List who changed what by commands and in the dashboard, newest first.

    phase: done; failed, with the error in note; refused; undone; or intent, if the operation has not ended, or its
    process was killed. About 100,000 entries are kept.
    """
    tests: list[Callable[[AuditEntry], bool]] = [
        lambda entry, name=name, value=value: getattr(entry, name) == value  # type: ignore[misc]
        for name, value in wanted.items()
        if value is not None
    ]
    if queues:
        names = {*queues.split(","), "*"}
        tests.append(lambda entry: bool(names.intersection(entry.queue.split(","))))
    entries: Iterator[AuditEntry] = AuditLog(session.client).newest(MOST_LOOKED_AT)
    if since is not None:
        after = time.time() * 1000 - since * 1000
        entries = _until(entries, after)
    found = entries if intents else without_ended_intents(entries)
    matching = (entry for entry in found if all(test(entry) for test in tests))
    session.say_all((_record(session, entry) for entry in islice(matching, limit)), ENTRIES)


def _until(entries: Iterator[AuditEntry], after_ms: float) -> Iterator[AuditEntry]:
    for entry in entries:
        if entry.at_ms < after_ms:
            return
        yield entry


def _record(session: Session, entry: AuditEntry) -> dict[str, Any]:
    facts = entry._asdict()
    facts["count"] = facts.pop("number")
    if session.as_json:
        return facts
    phase = "damaged" if entry.damaged else entry.phase
    count = "" if entry.number is None else f"{entry.number:,}"
    return {**facts, "at": output.moment(entry.at_ms), "count": count, "phase": phase}
