"""The public API through the eyes of mypy --strict and pyright."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
ROOT = CASES.parents[2]

pytestmark = pytest.mark.long


def mypy_errors(case: Path) -> set[int]:
    """The lines that mypy refuses."""
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--output", "json", str(case)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = [json.loads(line) for line in run.stdout.splitlines()]
    elsewhere = [error for error in found if Path(error["file"]).name != case.name]
    lines = {error["line"] for error in found if error["severity"] == "error"}
    # 1 without any error is Python's code when there is no mypy.
    assert run.returncode == bool(lines) and not elsewhere, (elsewhere, run.stderr)
    return lines


def pyright_errors(case: Path) -> set[int]:
    """The lines that pyright refuses."""
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(case)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.stdout, run.stderr
    said = json.loads(run.stdout)
    assert said["summary"]["filesAnalyzed"] == 1, said
    found = said["generalDiagnostics"]
    return {error["range"]["start"]["line"] + 1 for error in found if error["severity"] == "error"}


CHECKERS = pytest.mark.parametrize("errors", [mypy_errors, pyright_errors], ids=["mypy", "pyright"])


def marked(case: Path) -> set[int]:
    lines = case.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("  # E")}


@CHECKERS
def test_checker_accepts_what_is_right_and_sees_its_types(errors: Callable[[Path], set[int]]):
    assert errors(CASES / "accepted.py") == set()


@CHECKERS
def test_checker_refuses_exactly_what_is_wrong(errors: Callable[[Path], set[int]]):
    case = CASES / "refused.py"
    assert errors(case) == marked(case)


@CHECKERS
def test_checker_that_is_not_installed_is_an_error(
    errors: Callable[[Path], set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(AssertionError, match="No module named"):
        errors(CASES / "accepted.py")
