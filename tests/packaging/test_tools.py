"""What a test or a check needs and doesn't find: not run where that is allowed, never passed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import test_house, tools

ROOT = Path(__file__).resolve().parents[2]


def test_test_without_its_library_is_not_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JOBQ_REQUIRE_TOOLS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs the package nosuchpackage"):
        tools.library("nosuchpackage.part")


def test_test_without_its_library_fails_when_tools_are_required(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JOBQ_REQUIRE_TOOLS", "1")
    with pytest.raises(pytest.fail.Exception, match="needs the package nosuchpackage"):
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


def test_house_rules_find_the_files_when_there_is_no_git(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(FileNotFoundError):
        subprocess.run(["git"], check=False)
    assert Path(__file__).resolve() in test_house.tracked()
    assert ROOT / "jobq" / "__init__.py" in test_house.tracked("jobq/*.py")


def test_house_rules_fail_when_no_file_is_looked_at():
    with pytest.raises(AssertionError, match="no file"):
        test_house.tracked("*.nosuchsuffix")
