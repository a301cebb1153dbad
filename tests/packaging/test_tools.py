"""What a test or a check needs and doesn't find: not run where that is allowed, never passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import tools

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("required", "ends"), [("", pytest.skip), ("1", pytest.fail)])
def test_test_is_not_run_without_its_library_or_fails_when_tools_are_required(
    monkeypatch: pytest.MonkeyPatch, required: str, ends: Any
):
    monkeypatch.setenv("JOBQ_REQUIRE_TOOLS", required)
    with pytest.raises(ends.Exception, match="needs the package nosuchpackage"):
        tools.library("nosuchpackage.part")


def test_library_that_lacks_another_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "needs_another.py").write_text("import nosuchpackage\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nosuchpackage"):
        tools.library("needs_another")


def test_audit_of_packages_is_an_error_when_pip_audit_is_not_installed():
    command = [sys.executable, "-S", "-m", "tests.security.audit"]
    env = {**os.environ, "JOBQ_AUDIT": "report"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip-audit is not installed" in done.stderr
