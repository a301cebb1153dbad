"""The page that says what is proved where names faults and tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from jobq.chaos.faults import FAULTS

ROOT = Path(__file__).resolve().parents[2]
ROWS = [
    line
    for line in (ROOT / "docs/internals/faults.md").read_text().splitlines()
    if line[:2] == "| "
]
TESTS = {
    name
    for file in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("row", [row for row in ROWS if "`" in row.split("|")[-2]])
def test_proofs_of_a_fault_are_there(row):
    named = re.findall(r"`([\w-]+)`", row.split("|")[-2])
    assert named
    assert [name for name in named if name not in FAULTS and name not in TESTS] == []


def test_every_row_names_a_proof():
    bare = [row for row in ROWS if not row.split("|")[-2].strip()]
    assert bare == []


def test_every_fault_proves_something():
    named = set(re.findall(r"`([\w-]+)`", "\n".join(ROWS)))
    assert set(FAULTS) - named - {"none", "crowd", "storm"} == set()
