"""Output for people, JSON readers and spreadsheets."""

from __future__ import annotations

import csv
import io
from types import SimpleNamespace
from typing import Any

import pytest

from jobq.pipeline.report.formats import spreadsheet


def written(value: Any) -> str:
    """The one cell of a table of one row."""
    report = SimpleNamespace(columns=[SimpleNamespace(name="job")])
    text = spreadsheet(SimpleNamespace(report=report, rows=[{"job": value}], earlier=None))  # type: ignore[arg-type]
    (_, (cell,)) = csv.reader(io.StringIO(text))
    return cell


@pytest.mark.parametrize(
    "sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20", "\ufe66", "\ufe62"]
)
@pytest.mark.parametrize(
    "before", ["", " ", "\n", "\r", "\t", "\u00a0", "\u3000", "\ufeff", "\u200b", "\x00", " \n\t"]
)
def test_cell_is_no_formula_when_a_text_begins_like_one(sign, before):
    text = f"{before}{sign}cmd|'/C calc'!A0"
    assert written(text) == "'" + text


@pytest.mark.parametrize("text", ["\tx", "\rx", "\nx"])
def test_cell_is_guarded_when_a_text_begins_with_a_control_character(text):
    assert written(text) == "'" + text


@pytest.mark.parametrize("value", ["", "mail.send", "a=b", "naïve", "日本", "1", 1, -1, -0.5, "'x"])
def test_cell_is_left_alone_when_no_spreadsheet_would_run_it(value):
    assert written(value) == str(value)
