"""jobq completion: what shells need to complete."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest


@pytest.mark.one_server
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_jobq(cli: Any, shell: str) -> None:
    script = cli("completion", shell).out
    assert f"_JOBQ_COMPLETE={shell}_complete" in script
    # Line by line as it is: with escaped line feeds no shell could read it.
    assert script.strip() == json.loads(cli("completion", shell, "--json").out)["script"]
    assert len(script.splitlines()) > 5
    assert cli("completion", "tcsh").code == 2


@pytest.mark.one_server
def test_bash_reads_its_script(cli: Any) -> None:
    script = cli("completion", "bash").out
    told = subprocess.run(
        ["bash", "-c", f"{script}\ncomplete -p jobq"], capture_output=True, text=True, check=False
    )
    assert "_jobq_completion jobq" in told.stdout, told


@pytest.mark.one_server
def test_what_the_script_asks_is_answered() -> None:
    asked = {"_JOBQ_COMPLETE": "bash_complete", "COMP_WORDS": "jobq compl", "COMP_CWORD": "1"}
    told = subprocess.run(
        [sys.executable, "-m", "jobq"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert told.stdout == "plain,completion\n", told
