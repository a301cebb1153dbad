"""The files that outsiders meet: the workflow for their pull requests, forms, hooks, and the release script."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def read(path: str):
    return yaml.safe_load((ROOT / path).read_text())


def test_workflow_runs_the_same_script_as_a_person_when_a_pull_request_comes():
    steps = read(".github/workflows/ci.yml")["jobs"]["run"]["steps"]
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]


def test_issue_forms_have_unique_ids_and_a_label_for_each_field():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        fields = [field for field in read(str(path)).get("body", []) if field["type"] != "markdown"]
        ids = [field["id"] for field in fields]
        assert len(set(ids)) == len(ids)
        assert all(field["attributes"]["label"] for field in fields)


def test_hooks_run_the_tools_of_make_check():
    [repository] = read(".pre-commit-config.yaml")["repos"]
    check = (ROOT / "Makefile").read_text()
    for hook in repository["hooks"]:
        program, verb, _ = hook["entry"].removeprefix(".venv/bin/").split(" ", 2)
        assert f"$(BIN)/{program} {verb}" in check


@pytest.mark.needs("git")
def test_release_is_refused_when_a_change_is_not_committed(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/release", tmp_path / ".ci/release")
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    with (tmp_path / ".ci/release").open("a") as script:
        script.write("# A change.\n")
    refused = subprocess.run(
        ["bash", ".ci/release", str(Path(sys.executable).parents[1])],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode == 1
    assert "commit them" in refused.stderr
    assert not (tmp_path / "dist").exists()
