"""Every verb in every status, as the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.queue.states import STATUSES, VERBS, observed, page, rows

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("status", "verb", "reply", "after"), rows(), ids=lambda value: value.replace(" ", "_")
)
def test_verb_answers_and_leaves_the_status(queue, status, verb, reply, after):
    assert observed(queue, status, verb) == (reply, after)
    queue.admin.resume()
    assert queue.admin.fsck() == []


def test_table_has_every_verb_in_every_status():
    assert [(status, verb) for status, verb, _, _ in rows()] == [
        (status, verb) for status in STATUSES for verb in VERBS
    ]


def test_page_of_the_documents_is_the_table():
    assert (ROOT / "docs" / "reference" / "states.md").read_text() == page(), (
        "run python docs/make_states.py"
    )
