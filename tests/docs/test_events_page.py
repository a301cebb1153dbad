"""docs/reference/events.md says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from jobq.events import KINDS, LEVELS, MAXLEN, MAXLENS, SCHEMA

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")


def first_cells(heading: str) -> list[str]:
    """The code in the first column of the table whose first heading that is."""
    table = PAGE.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_tables_are_those_of_the_code():
    page = runpy.run_path(str(DOCS / "make_events.py"))["page"]
    assert page(PAGE) == PAGE, "run python docs/make_events.py"


def test_every_kind_and_level_is_told():
    assert first_cells("kind") == list(KINDS)
    assert first_cells("level") == list(LEVELS)


def test_limits_and_version_are_those_in_force():
    assert f"A queue keeps about {MAXLEN:,} events" in PAGE
    assert "sets another number from {:,} to {:,}".format(*MAXLENS) in PAGE
    assert f"currently `{SCHEMA}`" in PAGE
