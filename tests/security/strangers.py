"""Another user of the machine: files of theirs, and code that runs as they."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: Nobody's: an id that no user of a machine has.
STRANGER = 54321
needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="not run: only root can give files to another user"
)


def given_away(path: Path, uid: int = STRANGER) -> Path:
    """Give the path and everything below it to the stranger."""
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, uid, follow_symlinks=False)
    return path


def run_as(
    uid: int, imports: str, code: str, *, cwd: Path, **env: str
) -> subprocess.CompletedProcess[str]:
    """A Python that imports as it may and then becomes another user, who runs the code."""
    become = f"import os; os.setgroups([]); os.setgid({uid}); os.setuid({uid})"
    return ran("-c", f"{imports}\n{become}\n{code}", cwd=cwd, **env)


def ran(*args: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """A Python command line, with no setting of jobq but those given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JOBQ_")}
    return subprocess.run(
        [sys.executable, *args], cwd=cwd, capture_output=True, text=True, timeout=300,
        env={**kept, "PYTHONPATH": str(ROOT), **env},
    )  # fmt: skip
