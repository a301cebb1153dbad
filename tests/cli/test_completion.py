"""jobq completion: what shells need to complete."""

from __future__ import annotations

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
    assert cli("completion", "tcsh").code == 2


@pytest.mark.one_server
def test_what_the_script_asks_is_answered() -> None:
    asked = {"_JOBQ_COMPLETE": "bash_complete", "COMP_WORDS": "jobq compl", "COMP_CWORD": "1"}
    told = subprocess.run(
        [sys.executable, "-m", "jobq"], env={**os.environ, **asked}, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert told.stdout == "plain,completion\n", told
