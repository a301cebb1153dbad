"""Entries of a queue's outbox, read one by one, and divided into changes of one call each."""

from __future__ import annotations

import random

import pytest

from jobq.flows.entries import Done, Said, heard, in_calls
from jobq.flows.identity import member_of
from jobq.flows.store import MAX_DONE, PER_CALL
from jobq.flows.types import FlowChange
from jobq.queue.members import OutboxEntry

SUBJECTS = [
    *(f"~import:7.r1.rows.{number}" for number in (0, 1, 2, 64, 9_999_999, "007", 10_000_000, "", "1,2")),
    "~import:8.r1.rows.1", "~import:7.r1.more.1", "~import:7", "~", "", "import:7", "import:7.r1", "~é:1.r1.a.0",
    "~import:7.rows.0",
]  # fmt: skip


def one_by_one(entries: list[OutboxEntry]) -> dict[str, list[tuple[str, str, int]]]:
    """Kind, step and number of each record about a member, by flow; the words that are said to it."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for entry in entries:
        for kind, subject, _ in entry.records:
            member = member_of(subject)
            if kind in ("done", "done+", "dead", "cancelled") and member and member.run_id:
                found.setdefault(member.run, []).append((kind, member.step, member.number))
            elif kind in ("begin", "look") and subject in ("import:7", "import:7.r1"):
                found.setdefault(subject, []).append((kind, "", 0))
    return found


def test_entries_are_read_as_their_records_one_by_one():
    random_ = random.Random(7)
    for _ in range(2_000):
        entries = []
        for number in range(random_.randrange(1, 4)):
            kinds = random_.choice(
                (["done"], ["done"], ["done", "done+", "dead", "begin", "look", "x"])
            )
            some = (
                random_.sample(SUBJECTS, random_.randrange(1, 6))
                if random_.random() < 0.5
                else SUBJECTS[:4]
            )
            text = "\x1e".join(f"{random_.choice(kinds)}\x1f{subject}" for subject in some)
            entries.append(OutboxEntry(f"{number}-1", text.encode()))
        flat = {
            flow: [
                row
                for one in said
                for row in (
                    [("done", one.step, number) for number in one.numbers]
                    if isinstance(one, Done)
                    else [(one.record.kind, *(one.member[1:3] if one.member else ("", 0)))]
                )
            ]
            for flow, said in heard(entries).items()
        }  # fmt: skip
        assert flat == one_by_one(entries), entries


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\x1e",
        b"done\x1f",
        b"done\x1f~",
        b"done\x1f~\xff:1.rows.0\x1edone\x1f~\xff:1.rows.1",
        b"\xff\x1f\xff",
    ],
)
def test_entry_that_nobody_can_read_is_for_no_flow(text: bytes):
    assert heard([OutboxEntry("1-1", text)]) == {}


def test_members_of_an_entry_are_one_change_and_words_stay_in_between():
    texts = [
        "done\x1f~f:1.r1.rows.0\x1edone\x1f~f:1.r1.rows.1",
        "done\x1f~f:1.r1.rows.2",
        "look\x1ff:1.r1",
        "done\x1f~f:1.r1.rows.3",
    ]
    entries = [OutboxEntry(f"{place}-1", text.encode()) for place, text in enumerate(texts)]
    first, second, word, last = heard(entries)["f:1.r1"]
    assert [first, second] == [Done("0-1", "rows", [0, 1]), Done("1-1", "rows", [2])]
    assert last == Done("3-1", "rows", [3])
    assert isinstance(word, Said) and word.entry_id == "2-1"


def test_a_call_takes_no_more_than_the_script_allows():
    many = FlowChange("done", "rows", members=tuple(range(2 * MAX_DONE + 500)))
    changes = [
        FlowChange("done", "a"),
        many,
        *(FlowChange("dead", "rows", one) for one in range(PER_CALL + 1)),
    ]
    calls = [*in_calls(changes)]
    assert [one for call in calls for change in call for one in change.members] == [*many.members]
    assert sum(len(call) for call in calls) == 1 + 3 + PER_CALL + 1
    for call in calls:
        assert len(call) <= PER_CALL and sum(len(one.members) or 1 for one in call) <= MAX_DONE
