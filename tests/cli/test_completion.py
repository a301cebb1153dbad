"""`jobq completion`: completions for shells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_jobq(cli: Any, shell: str) -> None:
    script = cli("completion", shell).out
    assert f"_JOBQ_COMPLETE={shell}_complete" in script
    # Line by line as it is: with escaped line feeds no shell could read it.
    assert script.strip() == json.loads(cli("completion", shell, "--json").out)["script"]
    assert len(script.splitlines()) > 5
    assert cli("completion", "tcsh").code == 2


def test_bash_reads_its_script(cli: Any) -> None:
    script = cli("completion", "bash").out
    told = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p jobq"], capture_output=True, text=True, check=False
    )
    assert "_jobq_completion jobq" in told.stdout, told


def test_what_the_script_asks_is_answered() -> None:
    asked = {"_JOBQ_COMPLETE": "bash_complete", "COMP_WORDS": "jobq compl", "COMP_CWORD": "1"}
    told = subprocess.run(
        [sys.executable, "-m", "jobq"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert told.stdout == "plain,completion\n", told


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("jobq flow show import", "plain,import:7\nplain,import:8\n"),
        # Bash treats the colon as a word, and replaces the text after it.
        ("jobq flow show import : 8", "plain,8\n"),
        ("jobq flow retry other", ""),
    ],
)
def test_ids_of_flows_are_completed(client: Any, server: Any, words: str, answer: str) -> None:
    for started, flow in enumerate(["import:8", "import:7", b"import:\xff\n"]):
        client.command("ZADD", "jobq:flows", started, flow)
    asked = {
        "_JOBQ_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
        "JOBQ_URL": server.url,
    }  # fmt: skip
    told = subprocess.run(
        [sys.executable, "-m", "jobq"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert (told.stdout.strip(), told.stderr) == (answer.strip(), "")


def test_without_a_server_no_flow_is_completed_and_none_is_started(tmp_path: Any) -> None:
    asked = {
        "_JOBQ_COMPLETE": "bash_complete", "COMP_WORDS": "jobq flow show im", "COMP_CWORD": "3",
        "JOBQ_URL": f"unix://{tmp_path}/none",
    }  # fmt: skip
    for url in (asked["JOBQ_URL"], ""):
        told = subprocess.run(
            [sys.executable, "-m", "jobq"], env={**os.environ, **asked, "JOBQ_URL": url}, cwd=tmp_path,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (told.stdout.strip(), told.stderr) == ("", "")
    assert not list(tmp_path.iterdir())
