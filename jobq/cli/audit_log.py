"""`jobq audit-log`: list changes and the users who made them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from itertools import islice

from msgspec import structs

from jobq.cli import output
from jobq.cli.arguments import pairs_of
from jobq.cli.lake import lake_option, source_option, storage_option
from jobq.cli.options import limit_option, option, queues_option_of
from jobq.cli.output import Listing, OneRecord
from jobq.cli.session import Session, command, opens
from jobq.queue.audit_log import PAGE, AuditEntry, AuditLog, KeptAuditEntry, without_ended_intents

#: Maximum number of server entries that one command reads.
MAX_LOOKED_AT = 100_000
#: How long the lake may take for a page.
READ_S = 60.0
COLUMNS = (
    "at:at_ms", "who", "role", "verb", "queue", "filter", "count:number", "phase", "note",
)  # fmt: skip
_EMPTY = "no entries; changes by commands and in the dashboard appear here"
ENTRIES = Listing(COLUMNS, ("role", "note", "count", "filter"), _EMPTY)
#: With a lake, each entry names its source.
ENTRIES_OF_BOTH = Listing((*COLUMNS, "source"), ("role", "note", "count", "filter"), _EMPTY)


class _Older:
    """Reads entries of the audit log that are stored in a lake.

    Attributes:
        source: Where the last entry was read from: `server` or `lake`.
    """

    source = "server"

    def __init__(self, path: str, storage: tuple[str, ...], server: str) -> None:
        from jobq.web.lake import LakeHistory

        options = pairs_of("--storage-option", storage)
        self._lake = LakeHistory(path, options, most_s=READ_S, server=server)
        self.close = self._lake.close

    def before(self, entry_id: str) -> Iterator[AuditEntry]:
        """Yield the entries older than `entry_id`, latest first. If `entry_id` is '', yield all entries."""
        self.source = "lake"
        while audit := self._lake.audit(entry_id, {}, PAGE, intents=True):
            yield from audit
            entry_id = audit[-1].entry_id


def _older(
    session: Session, path: str | None, storage: tuple[str, ...], source: str
) -> _Older | None:
    return _Older(path, storage, source) if path else None


@command(
    "audit-log",
    "",
    "--queues mails --since 1d",
    "--who anna --verb revive --json",
    "-n 1000 --intents",
    "--since 90d --lake ./lake",
)
@limit_option(50, 100_000)
@queues_option_of("Only entries about these queues, or about all queues.")
@option("--who NAME", "Only entries of this person.")
@option("--verb VERB", "Only entries of this verb, such as pause.")
@option("--since DURATION", "Only entries at most this old.")
@option("--intents", "Also show the entry that each operation wrote before it started.")
@opens(
    "older", _older,
    lake_option("to list entries that the server no longer keeps"),
    storage_option,
    source_option,
)  # fmt: skip
def audit_log(
    session: Session, limit: int, queues: str | None, since: float | None, intents: bool,
    older: _Older | None, **wanted: str | None,
) -> None:  # fmt: skip
    """List changes made by commands and in the dashboard, newest first.

    phase: done, failed (the error is in `note`), refused, undone, or intent (the change is not finished, or its process
    was killed). --lake adds older entries that an ingest with --audit-log has copied. source: server or lake.
    """
    tests: list[Callable[[AuditEntry], bool]] = [
        lambda entry, name=name, value=value: getattr(entry, name) == value  # type: ignore[misc]
        for name, value in wanted.items()
        if value is not None
    ]
    if queues:
        names = {*queues.split(","), "*"}
        tests.append(lambda entry: bool(names.intersection(entry.queue.split(","))))
    entries = _all(AuditLog(session.client), older)
    if since is not None:
        after = time.time() * 1000 - since * 1000
        entries = _until(entries, after)
    kept = entries if intents else without_ended_intents(entries)
    matching = (entry for entry in kept if all(test(entry) for test in tests))
    with nullcontext() if older is None else closing(older):
        records = (
            _record(session, entry, older.source if older else "server")
            for entry in islice(matching, limit)
        )
        session.say_all(records, ENTRIES_OF_BOTH if older else ENTRIES)


def _all(log: AuditLog, older: _Older | None) -> Iterator[AuditEntry]:
    oldest = ""
    for entry in log.newest(MAX_LOOKED_AT):
        yield entry
        oldest = entry.entry_id
    if older is not None:
        yield from older.before(oldest)


def _until(entries: Iterator[AuditEntry], after_ms: float) -> Iterator[AuditEntry]:
    for entry in entries:
        if entry.at_ms < after_ms:
            return
        yield entry


def _record(session: Session, entry: AuditEntry, source: str) -> OneRecord:
    record = KeptAuditEntry.of(entry, source=source)
    if session.as_json:
        return record
    return structs.asdict(record) | {
        "at_ms": output.moment(entry.at_ms), "number": "" if entry.number is None else f"{entry.number:,}",
        "phase": "damaged" if entry.damaged else entry.phase,
    }  # fmt: skip
