"""Parses the entries of a queue's outbox, and groups their records by flow.

Usually, an entry reports many done members of one map. Such an entry is parsed in one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jobq.errors import ConfigError
from jobq.flows.announcing import WORDS
from jobq.flows.identity import Member, member_of, parts_of_run, run_of
from jobq.flows.store import MAX_DONE, PER_CALL
from jobq.flows.types import FlowChange
from jobq.queue.members import OutboxEntry, OutboxRecord

#: Kinds of records about members, and their meaning for a flow.
ENDINGS = {"done": "done", "done+": "done", "dead": "dead", "cancelled": "cancelled"}
#: Approximate bytes of results that one call delivers to a flow.
BYTES_PER_APPLY = 4 << 20
_NUMBERS = re.compile(rb"(?:0|[1-9][0-9]{0,6})(?:,(?:0|[1-9][0-9]{0,6}))*")


class Said(NamedTuple):
    """An outbox record that reports an ended member of a flow or sends a signal to a flow.

    Attributes:
        member: The ended member; None for a signal.
    """

    entry_id: str
    record: OutboxRecord
    member: Member | None


class Done(NamedTuple):
    """An outbox entry that lists several done members of one step. These members have no results."""

    entry_id: str
    step: str
    numbers: list[int]


#: Records in order, by flow and run id.
Heard = dict[str, list[Said | Done]]


def heard(entries: Sequence[OutboxEntry]) -> Heard:
    """Group the records by flow. Records that don't belong to a flow are left out."""
    by_run: Heard = {}
    for entry in entries:
        some = _members_of_a_map(entry.text)
        if some is not None:
            first, numbers = some
            _add_done(by_run, entry.entry_id, first, numbers)
            continue
        for record in entry.records:
            member = _member_in(record)
            if member is not None and record.kind == "done":
                _add_done(by_run, entry.entry_id, member, (member.number,))
            elif run := member.run if member is not None else _named_run(record):
                by_run.setdefault(run, []).append(Said(entry.entry_id, record, member))
    return by_run


def runs_in(entries: Sequence[OutboxEntry]) -> set[str]:
    """Return the flows, with their run ids, that the entries concern."""
    return set(heard(entries))


def _add_done(by_run: Heard, entry_id: str, member: Member, numbers: Sequence[int]) -> None:
    said = by_run.setdefault(member.run, [])
    last = said[-1] if said else None
    if isinstance(last, Done) and (last.entry_id, last.step) == (entry_id, member.step):
        last.numbers.extend(numbers)
    else:
        said.append(Done(entry_id, member.step, [*numbers]))


def _members_of_a_map(text: bytes) -> tuple[Member, list[int]] | None:
    """Return the first member and all member numbers if an entry only reports done members of one step; else None."""
    if not text.startswith(b"done\x1f~"):
        return None
    first = text.partition(b"\x1e")[0]
    before_number = first.rfind(b".") + 1
    head = b"\x1e" + first[:before_number]
    numbers = text[before_number:].replace(head, b",")
    if not _NUMBERS.fullmatch(numbers) or numbers.count(b",") != text.count(head):
        return None
    member = member_of(first[5:].decode("utf-8", "replace"))
    return None if not (member and member.run_id) else (member, [*map(int, numbers.split(b","))])


def _member_in(record: OutboxRecord) -> Member | None:
    """Return the member from a record about an ended member; None for other records."""
    member = member_of(record.subject) if record.kind in ENDINGS else None
    return member if member and member.run_id else None


def _named_run(record: OutboxRecord) -> str:
    """Return the flow to which a record sends a signal, with its run id if known; '' for other records."""
    try:
        return run_of(*parts_of_run(record.subject)) if record.kind in WORDS else ""
    except ConfigError:
        return ""


def in_calls(changes: Sequence[FlowChange]) -> Iterator[Sequence[FlowChange]]:
    """Group the changes, in order, so that each group fits into one call."""
    some: list[FlowChange] = []
    nbytes = ndone = 0
    for change in _divided(changes):
        count = len(change.members) or 1
        full = len(some) == PER_CALL or ndone + count > MAX_DONE
        if some and (full or nbytes > BYTES_PER_APPLY):
            yield some
            some, nbytes, ndone = [], 0, 0
        some.append(change)
        nbytes += len(change.detail or b"")
        ndone += count
    if some:
        yield some


def _divided(changes: Sequence[FlowChange]) -> Iterator[FlowChange]:
    for change in changes:
        if len(change.members) <= MAX_DONE:
            yield change
        else:
            for at in range(0, len(change.members), MAX_DONE):
                yield change._replace(members=change.members[at : at + MAX_DONE])
