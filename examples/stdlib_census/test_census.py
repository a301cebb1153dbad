"""Test that each file is counted once, even after a kill, and that an unparsable file is dead."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

# `jobq worker --import census_jobs` finds the modules in its working folder.
sys.path.insert(0, str(Path(__file__).parent))
import ledger
from census_jobs import census
from line_jobs import measure, measured


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return the path of a file with two functions, in its own folder."""
    path = tmp_path / "source.py"
    path.write_text("import os\ndef f(): ...\ndef g(): ...\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder for the jobs' results."""
    made = tmp_path / "ledger"
    made.mkdir()
    return made


def test_file_is_counted(jobq: Any, source: Path, folder: Path) -> None:
    census.enqueue(str(source), str(folder))
    assert jobq.drain().done == 1
    begun, ended = ledger.read(folder)
    assert (begun.word, ended.word) == ("start", "end")
    assert ended.counts is not None and ended.counts.functions == 2


def test_file_that_cannot_be_parsed_is_dead_after_two_retries(
    jobq: Any, source: Path, folder: Path
) -> None:
    source.write_text("def f(:\n")
    census.enqueue(str(source), str(folder))
    tried = jobq.drain(raises=False)
    assert (tried.failed, tried.dead) == (2, 1)
    jobq.assert_dead(census, reason="SyntaxError")
    assert [line.word for line in ledger.read(folder)] == ["start", "fail"] * 3


def test_faults_never_count_a_file_wrong(jobq: Any, source: Path, folder: Path) -> None:
    """A repeated run records the same figures again, and the summary counts them once."""

    def found() -> set[int]:
        return {line.counts.functions for line in ledger.read(folder) if line.counts is not None}

    def clear() -> None:
        for file in folder.iterdir():
            file.unlink()

    jobq.rehearse(census, str(source), str(folder), before=clear, observe=found)


def test_lines_are_measured(jobq: Any, folder: Path) -> None:
    measure.enqueue_many([(number, "x" * number, str(folder)) for number in range(4)])
    assert jobq.drain().done == 4
    assert measured(folder) == (4, 0, 6)
