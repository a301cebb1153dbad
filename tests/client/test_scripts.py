"""Where the scripts are read from."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.real_process
def test_jobq_in_an_archive_says_that_it_must_be_unpacked(tmp_path):
    archive = tmp_path / "app.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (ROOT / "jobq").rglob("*.py"):
            file.write(path, path.relative_to(ROOT))
    script = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "from jobq.client.scripts import load\n"
        "load('queue', 'enqueue')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert "imported from an archive" in ran.stderr
    assert "shiv or pex" in ran.stderr
